-- What the scripts of a quorum's nodes have in common. Each is one step on one node; that a majority of nodes agree is the
-- client's affair.
--
-- State on a node, per name with the main key K:
--   K            who holds it: a string `token#fence`, with `!` behind it if it outlives its client. Other libraries'
--                `SET K … NX PX` meets it as a lock like theirs.
--   {K}:fence    the highest fence this node has accepted for the name, or was told of by a release. It outlives every lease.
--   {K}:next     sorted set of those who wait, `token\nchannel` by arrival: who is told first when the name is free.
-- Per node:
--   BORN = KEYS[1]  `run_id time`: since when (µs, by this node's clock) it has forgotten nothing. Of another run_id, or not
--                there at all: it may have forgotten everything, and this moment is put in its place (B6).
--
-- Fences are in hex wherever they are text. Each answer begins with this node's time in µs, and its age in ms.

local BORN, RUN_ID = KEYS[1], ARGV[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000000 + TIME[2]

local function hex(n)
  return string.format('%x', n)
end

-- For how long it has forgotten nothing, in ms.
local function age_ms()
  local run_id, since = string.match(redis.call('GET', BORN) or '', '^(%S+) (%d+)$')
  since = tonumber(since)
  -- A moment that is still far off is one of a clock that was set back since.
  if run_id ~= RUN_ID or since > NOW + 1000000 then
    redis.call('SET', BORN, RUN_ID .. ' ' .. string.format('%.0f', NOW))
    return 0
  end
  return math.max(math.floor((NOW - since) / 1000), 0)
end

local function fence_of(key)
  return '{' .. key .. '}:fence'
end

local function last_of(key)
  return tonumber(redis.call('GET', fence_of(key)) or '0', 16) or 0
end

-- It never falls, and never ends sooner than it would have.
local function raise(key, last, number, life_ms)
  local left = redis.call('PTTL', fence_of(key))
  redis.call('SET', fence_of(key), hex(math.max(last, number)), 'PX', math.max(left, life_ms))
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
  if value and string.sub(value, 1, #token + 1) == token .. '#' then
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
    local first = redis.call('ZPOPMIN', line)[1]
    if not first then
      return
    end
    local token, channel = string.match(first, '^(.*)\n(.*)$')
    if redis.call('PUBLISH', channel, token .. '\n' .. hex(last)) > 0 then
      return
    end
  end
end
