-- What the scripts of a quorum's nodes have in common. Each is one step on one node; that a majority of nodes agree is the
-- client's affair.
--
-- State on a node, per name with the main key K:
--   K            who holds it: a string `token#fence`, with `!` behind it if it outlives its client. Other libraries'
--                `SET K … NX PX` meets it as a lock like theirs.
--   {K}:next     sorted set of those who wait, `token\nchannel` by arrival: who is told first when the name is free.
-- Per node:
--   MEMORY = KEYS[1]  sorted set, of all that a node must not forget, in one key without an end: so whatever takes a part of it
--                takes all, and the node knows.
--                K by the highest fence this node has accepted for the name, or was told of by a release (B2);
--                `\nrun_id` by the time, negative, since when it has forgotten nothing (B6).
--
-- ARGV of each: 1 run_id, 2 the time as most nodes have it (µs; empty where that is not known), 3 S: how far this clock may be
-- from it, and a fence from this clock (µs), 4 how long a fence is remembered (µs); then its own.
--
-- Other programs can write to these keys: a value longer than TEXT_MAX is not ours, every pattern takes linear time, a member of
-- {K}:next that is none of ours is dropped, and a MEMORY or a {K}:next of the wrong type is deleted (without its memory a node is one
-- that forgot). Loops are bounded: by the names that the caller sends, by 16 waiters to be told, by 100 waiters to be shown.
--
-- Fences are in hex wherever they are text. Each answer begins with this node's time in µs, and its age in ms.

local MEMORY, RUN_ID, MOST, S = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000000 + TIME[2]
-- What is forgotten by this clock, or dated, is so only while most others confirm it: one that leaps and returns changes nothing.
local AGREES = MOST and math.abs(MOST - NOW) <= S

local function hex(n)
  return string.format('%x', n)
end

local function decimal(n)
  return string.format('%.0f', n)
end

-- The longest value of ours has a token of 161 bytes, a fence and a mark.
local TEXT_MAX = 4096
local FENCE_MAX = 9007199254740991

-- A value as replies have it. One that is too long to be ours is not sent.
local function shown(value)
  return #value <= TEXT_MAX and value or '?'
end

-- Whether a reply is the error of a key of the wrong type; that key is deleted then.
local function is_wrong_type(reply, key)
  if type(reply) == 'table' and reply.err and string.find(reply.err, 'WRONGTYPE', 1, true) then
    redis.call('DEL', key)
    return true
  end
  return false
end

-- For how long it has forgotten nothing, in ms; and the highest fence of a name.
local function remembered(key)
  local found = redis.pcall('ZMSCORE', MEMORY, '\n' .. RUN_ID, key)
  if found.err then
    found = is_wrong_type(found, MEMORY) and {} or redis.call('ZMSCORE', MEMORY, '\n' .. RUN_ID, key)
  end
  local since, last = found[1] and -tonumber(found[1]), tonumber(found[2] or 0)
  -- A score that is no fence, or no time, is another program's.
  last = last >= 0 and last <= FENCE_MAX and last or 0
  since = since and since >= 0 and since or nil
  -- A moment that is still far off is one of a clock that was set back since.
  if since and since <= NOW + 1000000 then
    return math.max(math.floor((NOW - since) / 1000), 0), last
  end
  if AGREES then
    redis.call('ZREMRANGEBYSCORE', MEMORY, '-inf', '(0')
    redis.call('ZADD', MEMORY, decimal(-NOW), '\n' .. RUN_ID)
  end
  return 0, last
end

-- It never falls.
local function raise(key, last, number)
  if last < number then
    redis.call('ZADD', MEMORY, decimal(number), key)
  end
end

-- Forgets some fences of which all that could be asked for is far above them: many at a time, and not each time.
local function forget()
  if AGREES and NOW % 32 == 0 then
    local old = decimal(math.min(NOW, MOST) - tonumber(ARGV[4]))
    local keys = redis.call('ZRANGEBYSCORE', MEMORY, 0, old, 'LIMIT', 0, 512)
    if #keys > 0 then
      redis.call('ZREM', MEMORY, unpack(keys))
    end
  end
end

-- What holds the name; nil for nobody, false for a key that is no lock.
local function held(key)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then
    return false
  end
  return value or nil
end

-- The fence of a value, and what stands behind it, if it is this token's.
local function own(value, token)
  if value and #value <= #token + 18 and string.sub(value, 1, #token + 1) == token .. '#' then
    local fence, rest = string.match(value, '^(%x+)(!?)$', #token + 2)
    if fence then
      return tonumber(fence, 16), rest
    end
  end
end

-- Never shortened.
local function extend(key, ttl_ms)
  if redis.call('PTTL', key) < ttl_ms then
    redis.call('PEXPIRE', key, ttl_ms)
  end
end

-- Tells the first of those who wait and are there that the name is free, and which fence is not.
local function wake(key, last)
  local line = '{' .. key .. '}:next'
  for _ = 1, 16 do
    local popped = redis.pcall('ZPOPMIN', line)
    if popped.err then
      popped = is_wrong_type(popped, line) and {} or redis.call('ZPOPMIN', line)
    end
    local first = popped[1]
    if not first then
      return
    end
    local at = #first <= TEXT_MAX and string.find(first, '\n', 1, true)
    if at and redis.call('PUBLISH', string.sub(first, at + 1), string.sub(first, 1, at - 1) .. '\n' .. hex(last)) > 0 then
      return
    end
  end
end
