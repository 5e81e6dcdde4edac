-- What the scripts have in common. Each is one step: nothing comes between a look and what follows from it.
--
-- State, per name with the main key K:
--   K              who holds it. A string `VALUE` for one who has it alone, which other libraries' `SET K … NX PX` meets as
--                  a lock like theirs; or a sorted set of `SHARE:VALUE` (readers, or permits), each with the
--                  server's time in ms at which it ends. All holders of a name are in this one key, so that an eviction
--                  can never let a writer in beside readers.
--                  VALUE is `token#fence` (in hex: a lock is to take little room), then `/n` for a block of n fences, `!` if it outlives its client; and by lines
--                  the main keys, if it was claimed with several.
--   {K}:line       list of tokens: who waits, in the order of arrival, each once.
--   {K}:wait       hash of token -> entry; and `#b`, how many of them may pass others. Whoever has no entry does not wait.
--   {K}:away       hash of token -> entry: who waits and was not there when its turn came. It is out of everybody's way, and
--                  has its place again if it comes back. Gone when the last of them would have had to show itself.
--   {K}:yield      there for as long as ours keep off a free name, so that others who poll can have it (A10).
-- Per server:
--   LAST = KEYS[1] the highest fence given, or arrival: they are numbers of one sequence, which follows the clock. In hex.
--
-- An entry is, by lines: share, fences, detached (0 or 1), how many names, shows until (server's ms), ttl (ms), channel,
-- arrival, main keys.
-- A share is `x` (alone), `r` (reader), `pTAKE/LIMIT` (permits), with a `b` at the end if it may pass others.
-- Who is admitted, or has to look again, is told on its client's channel: token, fence, fences (if there are several); or the
-- token alone. Fences and arrivals are in hex wherever they are text.
--
-- Any program with access to the server can write to these keys, so a script takes nothing in them for granted:
--   A text longer than TEXT_MAX is not ours, and no pattern is applied to it. Every pattern takes time linear in its text.
--   A value or member that cannot be parsed belongs to another library. An entry that cannot be parsed, or that does not name the key
--   beside which it stands, is removed from the queue.
--   A private key of the wrong type is never touched, except by `evict`, which deletes it.
-- Loops are bounded:
--   by the names of a claim (at most 64) and the claims of a batch (at most 256), which the caller sends;
--   by HOLDERS_MAX for the holders of one name;
--   by STEPS_MAX for the entries of queues that one call of `admit` looks at, SCRIPT_STEPS_MAX for all calls of one script, and
--   BYTES_MAX for the text of entries that a script reads;
--   by SCRIPT_STEPS_MAX for the waiters that `inspect` returns, and by SEARCH_MAX for the search for a place in a queue.

local LAST = KEYS[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000000 + TIME[2]
local NOW_MS = math.floor(NOW / 1000)
local FENCE_MAX = 9007199254740991
-- The longest text of ours: a token, and the keys of 64 names.
local TEXT_MAX = 65536
local TOKEN_MAX = 256
local NAMES_MAX = 64
local TTL_MAX_MS = 366 * 24 * 3600 * 1000
local HOLDERS_MAX = 16384
local STEPS_MAX = 512
local SCRIPT_STEPS_MAX = 2048
local BYTES_MAX = 1048576
local SEARCH_MAX = 128
local last, last_is_new
local steps_left, bytes_left = SCRIPT_STEPS_MAX, BYTES_MAX

local function integer(n)
  return string.format('%d', n)
end

local function hex(n)
  return string.format('%x', n)
end

local function type_of(key)
  return redis.call('TYPE', key).ok
end

-- A whole number of at most 16 digits; nil for any other text.
local function whole(text, lowest, highest)
  local n = text and #text <= 16 and string.find(text, '^%d+$') and tonumber(text)
  return n and n >= lowest and n <= highest and n or nil
end

-- A fence or an arrival; nil for any other text.
local function number_of(text)
  local n = text and #text <= 14 and string.find(text, '^%x+$') and tonumber(text, 16)
  return n and n <= FENCE_MAX and n or nil
end

-- What is left of a score in ms, as an integer that fits a reply.
local function left_of(score)
  local left = (tonumber(score) or 0) - NOW_MS
  return left == left and math.max(math.min(left, FENCE_MAX), 0) or 0
end

-- A value as replies have it. One that is too long to be ours is not sent.
local function shown(value)
  return #value <= TEXT_MAX and value or '?'
end

local function line_of(key)
  return '{' .. key .. '}:line'
end

local function wait_of(key)
  return '{' .. key .. '}:wait'
end

local function away_of(key)
  return '{' .. key .. '}:away'
end

local function yield_of(key)
  return '{' .. key .. '}:yield'
end

-- The private key of a name that has the wrong type, and that type; nil if all are sound. Asked once for each name.
local damages = {}
local function damage(key)
  local found = damages[key]
  if found == nil then
    local line, wait, away = type_of(line_of(key)), type_of(wait_of(key)), type_of(away_of(key))
    if line ~= 'list' and line ~= 'none' then
      found = { line_of(key), line }
    elseif wait ~= 'hash' and wait ~= 'none' then
      found = { wait_of(key), wait }
    elseif away ~= 'hash' and away ~= 'none' then
      found = { away_of(key), away }
    end
    damages[key] = found or false
  end
  if found then
    return found[1], found[2]
  end
end

-- The highest fence given; nil where LAST has the wrong type. A text that is no fence counts as none, as after a loss of the key.
local function last_given()
  if not last then
    local text = redis.pcall('GET', LAST)
    last = type(text) ~= 'table' and (number_of(text or '0') or 0) or nil
  end
  return last
end

-- The reply for the first of these names, or for LAST, that has a key of the wrong type; nil if all are sound.
local function damaged(keys)
  for _, key in ipairs(keys) do
    local private, kind = damage(key)
    if private then
      return { 'foreign', private, kind }
    end
  end
  if not last_given() then
    return { 'foreign', LAST, type_of(LAST) }
  end
end

-- The first of n new numbers; nil at the limit, or where LAST has the wrong type.
local function take(n, lowest)
  local first = last_given() and math.max(last + 1, NOW, lowest)
  if not first or first > FENCE_MAX - n + 1 then
    return nil
  end
  last, last_is_new = first + n - 1, true
  return first
end

-- Whatever took a number ends with this.
local function done(reply)
  if last_is_new then
    redis.call('SET', LAST, hex(last))
    last_is_new = false
  end
  return reply
end

local function value_of(token, fence, n, detached, keys)
  local value = token .. '#' .. hex(fence)
  if n > 1 then
    value = value .. '/' .. n
  end
  if detached then
    value = value .. '!'
  end
  if #keys > 1 then
    value = value .. '\n' .. table.concat(keys, '\n')
  end
  return value
end

-- nil for a value that is not ours. The fence is behind the last `#` of the first line; what follows it is short, so that the
-- pattern for it costs the same for any value.
local function parsed(value)
  if #value > TEXT_MAX then
    return nil
  end
  local ends = string.find(value, '\n', 1, true)
  local head = ends and string.sub(value, 1, ends - 1) or value
  local at = string.match(head, '^.*#()')
  if not at or #head - at >= 24 then
    return nil
  end
  local fence, n, mark = string.match(head, '^(%x+)/?(%d*)(!?)$', at)
  local number = number_of(fence)
  if not number then
    return nil
  end
  return {
    token = string.sub(head, 1, at - 2), fence = number, n = tonumber(n) or 1, detached = mark == '!',
    keys = ends and string.sub(value, ends + 1) or '', value = value,
  }
end

-- The same for one of several who hold it together.
local function member_of(member)
  local colon = string.find(member, ':', 1, true)
  if not colon or colon > 24 then
    return nil
  end
  local share = string.sub(member, 1, colon - 1)
  local kind, weight = string.match(share, '^([rp])(%d*)/?%d*b?$')
  local it = kind and parsed(string.sub(member, colon + 1))
  if not it then
    return nil
  end
  it.share, it.kind, it.weight, it.member = share, kind, tonumber(weight) or 1, member
  return it
end

-- Takes out what has ended, of those who hold it together.
local function purge(key)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', NOW_MS)
end

local function share_of(share)
  local kind = string.sub(share, 1, 1)
  local take_, limit = string.match(share, '^p(%d+)/(%d+)')
  return kind, tonumber(take_) or 1, tonumber(limit) or 1, string.sub(share, -1) == 'b'
end

-- The value of a key that is a string, read once: it may be long.
local values = {}
local function value_at(key)
  values[key] = values[key] or redis.call('GET', key)
  return values[key]
end

-- What this token holds at this key, claimed with these names; nil if nothing.
local function own(key, token, keys)
  local kind = type_of(key)
  if kind == 'string' then
    local it = parsed(value_at(key))
    if it and it.token == token and it.keys == keys then
      it.share, it.kind, it.left = 'x', 'x', redis.call('PTTL', key)
      return it
    end
  elseif kind == 'zset' then
    purge(key)
    for _, member in ipairs(redis.call('ZRANGE', key, 0, HOLDERS_MAX - 1)) do
      if string.find(member, ':' .. token .. '#', 1, true) then
        local it = member_of(member)
        if it and it.token == token and it.keys == keys then
          it.left = left_of(redis.call('ZSCORE', key, member))
          return it
        end
      end
    end
  end
  return nil
end

-- The same at every one of these keys, or nothing: a token shown at other names than it claimed holds nothing there.
local function own_all(keys, token)
  local found = {}
  local claimed = #keys > 1 and table.concat(keys, '\n') or ''
  for i, key in ipairs(keys) do
    found[i] = own(key, token, claimed)
    if not found[i] then
      return nil
    end
  end
  return found
end

-- Whether a share fits beside the holders of a key, but for one of them. A second answer of 'foreign' is for a key that is no
-- lock at all.
local function fits(key, share, except)
  local kind = type_of(key)
  if kind == 'none' then
    return redis.call('EXISTS', yield_of(key)) == 0
  elseif kind == 'string' then
    return except ~= nil and value_at(key) == except
  elseif kind ~= 'zset' then
    return false, 'foreign'
  end
  purge(key)
  local wanted, weight, limit = share_of(share)
  -- `own` looks at so many: a holder more would be lost at its next renewal.
  local first_too_many = HOLDERS_MAX - (except and 0 or 1)
  if redis.call('ZRANGE', key, first_too_many, first_too_many)[1] then
    return false
  end
  local used = 0
  -- Only permits are added up; of others any tells of all. Each takes one permit at least.
  local members = redis.call('ZRANGE', key, 0, wanted == 'p' and math.min(limit, HOLDERS_MAX) or 1)
  for _, member in ipairs(members) do
    if member ~= except then
      local it = member_of(member)
      if not it or wanted == 'x' or it.kind ~= wanted then
        return false, (not it) and 'foreign' or nil
      elseif wanted == 'r' then
        return true
      end
      used = used + it.weight
    end
  end
  return wanted ~= 'p' or used + weight <= limit
end

-- Makes it last at least so long.
local function stretch(key, ttl)
  if redis.call('PTTL', key) < ttl then
    redis.call('PEXPIRE', key, ttl)
  end
end

local function hold(key, share, value, ttl)
  values[key] = nil
  if share == 'x' then
    redis.call('SET', key, value, 'PX', ttl)
  else
    redis.call('ZADD', key, NOW_MS + ttl, share .. ':' .. value)
    stretch(key, ttl)
  end
end

local function drop(key, it)
  values[key] = nil
  if it.kind == 'x' then
    redis.call('DEL', key)
  else
    redis.call('ZREM', key, it.member)
  end
end

-- Moves the end of a holding on, never back.
local function rearm(key, it, ttl)
  if it.left < ttl then
    if it.kind ~= 'x' then
      redis.call('ZADD', key, NOW_MS + ttl, it.member)
    end
    stretch(key, ttl)
  end
end

-- The entry of a waiter beside this key; nil for a text that is none, or that does not name this key.
local function entry_of(text, key)
  if not text or #text > TEXT_MAX then
    return nil
  end
  local fields, at = {}, 1
  for i = 1, 9 + NAMES_MAX do
    local ends = string.find(text, '\n', at, true)
    fields[i] = string.sub(text, at, (ends or 0) - 1)
    if not ends then
      break
    end
    at = ends + 1
  end
  local keys, is_here = {}, false
  for i = 9, #fields do
    keys[#keys + 1] = fields[i]
    is_here = is_here or fields[i] == key
  end
  local share = fields[1]
  local is_share = share == 'x' or share == 'r' or #share <= 24 and string.find(share, '^p%d+/%d+b?$')
  local n, shows_until, ttl = whole(fields[2], 1, 65535), whole(fields[5], 0, FENCE_MAX), whole(fields[6], 1, TTL_MAX_MS)
  local arrival = number_of(fields[8])
  if not (is_share and n and shows_until and ttl and arrival and is_here) or whole(fields[4], 1, NAMES_MAX) ~= #keys then
    return nil
  end
  return {
    share = share, n = n, detached = fields[3] == '1', shows_until = shows_until, ttl = ttl, channel = fields[7],
    arrival = arrival, keys = keys,
  }
end

-- The entry of a waiter in the queue of this key; nil where it has none, or one that cannot be parsed. The second result is whether
-- there is any.
local function waiter_of(key, token)
  if #token > TOKEN_MAX or string.find(token, '\n', 1, true) then
    return nil, true
  end
  local text = redis.call('HGET', wait_of(key), token)
  bytes_left = bytes_left - #(text or '')
  return entry_of(text, key), text and true
end

-- Takes an entry that cannot be parsed out of the queue of one key.
local function discard(key, token)
  redis.call('LREM', line_of(key), 1, token)
  if token ~= '#b' then
    redis.call('HDEL', wait_of(key), token)
  end
end

-- Publishes, and returns how many clients of this server received it. The right to publish to one channel may be missing where
-- another program wrote the entry: that is nobody's error. Without the right to publish at all, the script ends with an error that says so.
local function tell(channel, message)
  local heard = redis.pcall('PUBLISH', channel, message)
  if type(heard) == 'table' and not string.find(heard.err, 'channel', 1, true) then
    return redis.call('PUBLISH', channel, message)
  end
  return type(heard) == 'number' and heard or 0
end

-- Whether a client of this server listens on a channel. A grant that is published is believed by every client that receives it,
-- also by one that is connected to a replica: so the count comes first, then the hold, and PUBLISH last. A user without the right
-- to PUBSUB NUMSUB publishes an empty message, which clients ignore, for its count.
local function listens(channel)
  local counted = redis.pcall('PUBSUB', 'NUMSUB', channel)
  if counted.err then
    return tell(channel, '') > 0
  end
  return counted[2] > 0
end

local function first_in(key)
  return redis.call('LINDEX', line_of(key), 0)
end

-- Has a waiter look again; says whether its client listens. The right to publish to a channel that another program wrote may be
-- missing.
local function hint(key, token)
  local entry = token and waiter_of(key, token)
  return entry and entry.channel ~= '' and tell(entry.channel, token) > 0
end

-- The new first in line is the one who watches the holder's end.
local function tell_first(key)
  if not damage(key) then
    hint(key, first_in(key))
  end
end

-- Somebody has to watch the end of a moment in which nobody is admitted: the first in line that is there, of 16.
local function tell_one(key)
  for _, token in ipairs(damage(key) and {} or redis.call('LRANGE', line_of(key), 0, 15)) do
    if hint(key, token) then
      return
    end
  end
end

-- Counts those who may pass others.
local function count_barging(key, by)
  local wait = wait_of(key)
  if not whole(redis.call('HGET', wait, '#b') or '0', 0, 4294967295) then
    redis.call('HDEL', wait, '#b')
  end
  if redis.call('HINCRBY', wait, '#b', by) <= 0 then
    redis.call('HDEL', wait, '#b')
  end
end

local function step_out(token, entry)
  local barges = string.sub(entry.share, -1) == 'b'
  for _, key in ipairs(entry.keys) do
    if not damage(key) then
      redis.call('LREM', line_of(key), 1, token)
      if redis.call('HDEL', wait_of(key), token) == 1 and barges then
        count_barging(key, -1)
      end
    end
  end
end

-- Out of the way, for as long as it is not there: whoever stands behind a thousand dead is not to wait for each of them at
-- every hand-over.
local function step_aside(token, entry)
  local texts = {}
  for i, key in ipairs(entry.keys) do
    texts[i] = not damage(key) and redis.call('HGET', wait_of(key), token)
  end
  step_out(token, entry)
  for i, key in ipairs(entry.keys) do
    if texts[i] then
      redis.call('HSET', away_of(key), token, texts[i])
      stretch(away_of(key), entry.shows_until - NOW_MS)
    end
  end
end

-- When it came, if it stepped aside since.
local function arrival_kept(key, token)
  local entry = entry_of(redis.call('HGET', away_of(key), token), key)
  return entry and entry.arrival
end

-- When it came, if it stands in this line; and whether something of it may be there. To look for it takes as long as the line is:
-- in a long one its entry is enough, unless there are more or fewer of those than stand there, because one of the two was lost.
local function arrival_of(key, token)
  local wait = wait_of(key)
  local text = redis.call('HGET', wait, token)
  local length = redis.call('LLEN', line_of(key))
  local is_whole = redis.call('HLEN', wait) == length + (redis.call('HGET', wait, '#b') and 1 or 0)
  local entry = entry_of(text, key)
  if entry and (is_whole and length > 64 or redis.call('LPOS', line_of(key), token)) then
    return entry.arrival, true
  end
  return nil, text or not is_whole
end

-- Has its place again: before all who came later. The search takes SEARCH_MAX steps at most.
local function step_back_in(key, token, arrival)
  local line = line_of(key)
  local from, to = 0, redis.call('LLEN', line)
  local later
  for _ = 1, SEARCH_MAX do
    if from >= to then
      break
    end
    local middle = math.floor((from + to) / 2)
    local other = redis.call('LINDEX', line, middle)
    local entry = waiter_of(key, other)
    if not entry then
      discard(key, other)
      to = to - 1
    elseif entry.arrival > arrival then
      later, to = other, middle
    else
      from = middle + 1
    end
  end
  if later then
    redis.call('LINSERT', line, 'BEFORE', later, token)
  else
    redis.call('RPUSH', line, token)
  end
end

-- First in line at each of its names, or free to pass; and fitting. What was found not to fit is not looked at again: ten thousand
-- may want the same.
local function may_enter(token, entry, refused)
  local _, _, _, barges = share_of(entry.share)
  for _, key in ipairs(entry.keys) do
    local what = key .. '\n' .. entry.share
    if refused[what] or damage(key) or not barges and first_in(key) ~= token then
      return false
    elseif not fits(key, entry.share) then
      refused[what] = true
      return false
    end
  end
  return true
end

-- Serves the lines at these keys, and at every key this frees in turn: whoever called. `caller` is there in any case. Says
-- whether somebody may have been left because there were too many: then the next call goes on from there.
--
-- Each turn of the loops takes one of STEPS_MAX steps. A turn either removes an entry from a queue, passes one, or ends a queue.
-- At most 128 grants are made, and 16 entries removed from the middle of a queue, which takes as long as the queue is.
local function admit(keys, caller)
  -- Nobody leaves meanwhile: what does not fit will not.
  local todo, absent, refused, budget, deep = {}, {}, {}, 128, 16
  local steps, has_changed = STEPS_MAX, false
  for _, key in ipairs(keys) do
    todo[#todo + 1] = key
  end
  while #todo > 0 do
    local key = table.remove(todo)
    local passed, ends = 0, damage(key)
    while not ends do
      if steps_left == 0 then
        return true
      elseif steps == 0 or bytes_left < 0 then
        return has_changed
      end
      steps, steps_left = steps - 1, steps_left - 1
      local token = redis.call('LINDEX', line_of(key), passed)
      if not token then
        break
      end
      local entry = waiter_of(key, token)
      local is_served = false
      if not entry then
        discard(key, token)
        has_changed = true
      elseif entry.shows_until <= NOW_MS and passed > 0 and deep == 0 then
        -- To take out one in the middle takes as long as the line is: another time.
        passed = passed + 1
      elseif entry.shows_until <= NOW_MS then
        deep = deep - (passed > 0 and 1 or 0)
        step_out(token, entry)
        is_served = true
      elseif not may_enter(token, entry, refused) then
        passed, ends = passed + 1, not redis.call('HGET', wait_of(key), '#b')
      else
        if budget == 0 then
          return true
        end
        local fence = take(entry.n, 0)
        if not fence then
          return false
        end
        local is_told = token ~= caller and entry.channel ~= ''
        if not is_told or not absent[entry.channel] and listens(entry.channel) then
          budget = budget - 1
          step_out(token, entry)
          -- Before the hold: whatever fails after it, no fence is given twice.
          done()
          local value = value_of(token, fence, entry.n, entry.detached, entry.keys)
          for _, its in ipairs(entry.keys) do
            hold(its, entry.share, value, entry.ttl)
          end
          if is_told then
            -- Last: the message also reaches the clients of replicas, whether a client of this server listens or not.
            tell(entry.channel, token .. '\n' .. hex(fence) .. (entry.n > 1 and '\n' .. entry.n or ''))
          end
          is_served, ends = true, entry.share == 'x'
        else
          absent[entry.channel] = true
          step_aside(token, entry)
          is_served = true
        end
      end
      if is_served then
        has_changed = true
        for _, its in ipairs(entry.keys) do
          if its ~= key then
            todo[#todo + 1] = its
          end
        end
      end
    end
  end
  return false
end

-- Serves the lines at these keys as far as one script may, for callers that do not ask again.
local function admit_all(keys)
  for _ = 1, SCRIPT_STEPS_MAX / STEPS_MAX do
    if not admit(keys) then
      return
    end
  end
end

-- Leaves the lines it stands in. Says whether it stood there.
local function leave(keys, token)
  local entry
  for _, key in ipairs(keys) do
    -- Where one of several was lost, it stands in the others.
    entry = entry or not damage(key) and waiter_of(key, token) or nil
  end
  if not entry then
    for _, key in ipairs(keys) do
      if not damage(key) then
        redis.call('HDEL', away_of(key), token)
        if redis.call('HGET', wait_of(key), token) then
          discard(key, token)
        end
      end
    end
    return false
  elseif #entry.keys ~= #keys then
    return false
  end
  local firsts = {}
  for _, key in ipairs(entry.keys) do
    if not damage(key) and first_in(key) == token then
      firsts[#firsts + 1] = key
    end
  end
  step_out(token, entry)
  admit(entry.keys)
  for _, key in ipairs(firsts) do
    tell_first(key)
  end
  return true
end

local function names()
  local keys = {}
  for i = 2, #KEYS do
    keys[#keys + 1] = KEYS[i]
  end
  return keys
end

-- Why a claim is not there any more.
local function gone(keys)
  for _, key in ipairs(keys) do
    if redis.call('EXISTS', key) == 1 then
      return 'taken'
    end
  end
  return 'deleted'
end
