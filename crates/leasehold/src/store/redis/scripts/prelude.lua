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

local LAST = KEYS[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000000 + TIME[2]
local NOW_MS = math.floor(NOW / 1000)
local FENCE_MAX = 9007199254740991
local last, last_is_new

local function integer(n)
  return string.format('%d', n)
end

local function hex(n)
  return string.format('%x', n)
end

-- The first of n new numbers; nil at the limit.
local function take(n, lowest)
  last = last or tonumber(redis.call('GET', LAST) or '0', 16) or 0
  local first = math.max(last + 1, NOW, lowest)
  if first > FENCE_MAX - n + 1 then
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

-- nil for a value that is not ours.
local function parsed(value)
  local head, keys = string.match(value, '^([^\n]*)\n?(.*)$')
  local token, fence, n, mark = string.match(head or '', '^(.*)#(%x+)/?(%d*)(!?)$')
  if not token then
    return nil
  end
  return { token = token, fence = tonumber(fence, 16), n = tonumber(n) or 1, detached = mark == '!', keys = keys, value = value }
end

-- The same for one of several who hold it together.
local function member_of(member)
  local share, kind, weight, value = string.match(member, '^(([rp])(%d*)/?%d*b?):(.*)$')
  local it = value and parsed(value)
  if not it then
    return nil
  end
  it.share, it.kind, it.weight, it.member = share, kind, tonumber(weight) or 1, member
  return it
end

local function type_of(key)
  return redis.call('TYPE', key).ok
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

-- What this token holds at this key, claimed with these names; nil if nothing.
local function own(key, token, keys)
  local kind = type_of(key)
  if kind == 'string' then
    local it = parsed(redis.call('GET', key))
    if it and it.token == token and it.keys == keys then
      it.share, it.kind, it.left = 'x', 'x', redis.call('PTTL', key)
      return it
    end
  elseif kind == 'zset' then
    purge(key)
    for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      if string.find(member, ':' .. token .. '#', 1, true) then
        local it = member_of(member)
        if it and it.token == token and it.keys == keys then
          it.left = tonumber(redis.call('ZSCORE', key, member)) - NOW_MS
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
    return except ~= nil and redis.call('GET', key) == except
  elseif kind ~= 'zset' then
    return false, 'foreign'
  end
  purge(key)
  local wanted, weight, limit = share_of(share)
  local used = 0
  -- Only permits are added up; of others any tells of all.
  for _, member in ipairs(redis.call('ZRANGE', key, 0, wanted == 'p' and -1 or 1)) do
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
  if share == 'x' then
    redis.call('SET', key, value, 'PX', ttl)
  else
    redis.call('ZADD', key, NOW_MS + ttl, share .. ':' .. value)
    stretch(key, ttl)
  end
end

local function drop(key, it)
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

local function entry_of(text)
  local fields, keys = {}, {}
  for field in string.gmatch(text, '([^\n]*)\n?') do
    fields[#fields + 1] = field
  end
  for i = 9, #fields do
    if fields[i] ~= '' then
      keys[#keys + 1] = fields[i]
    end
  end
  return {
    share = fields[1], n = tonumber(fields[2]), detached = fields[3] == '1', shows_until = tonumber(fields[5]),
    ttl = tonumber(fields[6]), channel = fields[7], arrival = tonumber(fields[8] or '', 16) or 0, keys = keys,
  }
end

local function tell(channel, message)
  return redis.call('PUBLISH', channel, message)
end

local function first_in(key)
  return redis.call('LINDEX', line_of(key), 0)
end

-- The new first in line is the one who watches the holder's end.
local function tell_first(key)
  local token = first_in(key)
  local text = token and redis.call('HGET', wait_of(key), token)
  local entry = text and entry_of(text)
  if entry and entry.channel ~= '' then
    tell(entry.channel, token)
  end
end

-- Somebody has to watch the end of a moment in which nobody is admitted: the first in line that is there.
local function tell_one(key)
  for _, token in ipairs(redis.call('LRANGE', line_of(key), 0, 15)) do
    local text = redis.call('HGET', wait_of(key), token)
    local channel = text and entry_of(text).channel
    if channel and channel ~= '' and tell(channel, token) > 0 then
      return
    end
  end
end

local function step_out(token, entry)
  local barges = string.sub(entry.share, -1) == 'b'
  for _, key in ipairs(entry.keys) do
    redis.call('LREM', line_of(key), 1, token)
    local was_there = redis.call('HDEL', wait_of(key), token) == 1
    if was_there and barges and redis.call('HINCRBY', wait_of(key), '#b', -1) <= 0 then
      redis.call('HDEL', wait_of(key), '#b')
    end
  end
end

-- Out of the way, for as long as it is not there: whoever stands behind a thousand dead is not to wait for each of them at
-- every hand-over.
local function step_aside(token, entry)
  local texts = {}
  for i, key in ipairs(entry.keys) do
    texts[i] = redis.call('HGET', wait_of(key), token)
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
  local text = redis.call('HGET', away_of(key), token)
  return text and entry_of(text).arrival
end

-- When it came, if it stands in this line; and whether something of it may be there. To look for it takes as long as the line is:
-- in a long one its entry is enough, unless there are more or fewer of those than stand there, because one of the two was lost.
local function arrival_of(key, token)
  local wait = wait_of(key)
  local text = redis.call('HGET', wait, token)
  local length = redis.call('LLEN', line_of(key))
  local is_whole = redis.call('HLEN', wait) == length + (redis.call('HGET', wait, '#b') and 1 or 0)
  if text and (is_whole and length > 64 or redis.call('LPOS', line_of(key), token)) then
    return entry_of(text).arrival, true
  end
  return nil, text or not is_whole
end

-- Has its place again: before all who came later.
local function step_back_in(key, token, arrival)
  local line = line_of(key)
  local from, to = 0, redis.call('LLEN', line)
  local later
  while from < to do
    local middle = math.floor((from + to) / 2)
    local other = redis.call('LINDEX', line, middle)
    local text = redis.call('HGET', wait_of(key), other)
    if not text then
      redis.call('LREM', line, 1, other)
      to = to - 1
    elseif entry_of(text).arrival > arrival then
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
    if refused[what] or not barges and first_in(key) ~= token then
      return false
    elseif not fits(key, entry.share) then
      refused[what] = true
      return false
    end
  end
  return true
end

-- Serves the lines at these keys, and at every key this frees in turn: whoever called. `caller` is there in any case. Says
-- whether somebody may have been left because there were too many.
local function admit(keys, caller)
  -- Nobody leaves meanwhile: what does not fit will not.
  local todo, absent, refused, budget, deep = {}, {}, {}, 128, 64
  for _, key in ipairs(keys) do
    todo[#todo + 1] = key
  end
  while #todo > 0 do
    local key = table.remove(todo)
    local passed = 0
    while true do
      local token = redis.call('LINDEX', line_of(key), passed)
      if not token then
        break
      end
      local text = redis.call('HGET', wait_of(key), token)
      local entry = text and entry_of(text)
      local is_served, ends = false, false
      if not entry or #entry.keys == 0 then
        -- Of whom nothing is known, or nothing that makes sense: to step out would not take it away, and this would never end.
        redis.call('LREM', line_of(key), 1, token)
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
        budget = budget - 1
        local fence = take(entry.n, 0)
        if not fence then
          return false
        end
        -- A write that changes nothing: where writes are refused, nobody is told of a grant that is not made.
        redis.call('HDEL', wait_of(key), '')
        local several = entry.n > 1 and '\n' .. entry.n or ''
        local is_there = token == caller or entry.channel == ''
          or not absent[entry.channel] and tell(entry.channel, token .. '\n' .. hex(fence) .. several) > 0
        if is_there then
          step_out(token, entry)
          local value = value_of(token, fence, entry.n, entry.detached, entry.keys)
          for _, its in ipairs(entry.keys) do
            hold(its, entry.share, value, entry.ttl)
          end
          is_served, ends = true, entry.share == 'x'
        else
          absent[entry.channel] = true
          step_aside(token, entry)
          is_served = true
        end
      end
      if is_served then
        for _, its in ipairs(entry.keys) do
          if its ~= key then
            todo[#todo + 1] = its
          end
        end
      end
      if ends then
        break
      end
    end
  end
  return false
end

-- Leaves the lines it stands in. Says whether it stood there.
local function leave(keys, token)
  local text
  for _, key in ipairs(keys) do
    -- Where one of several was lost, it stands in the others.
    text = text or redis.call('HGET', wait_of(key), token)
  end
  local entry = text and entry_of(text)
  if not entry then
    for _, key in ipairs(keys) do
      if arrival_kept(key, token) then
        redis.call('HDEL', away_of(key), token)
      end
    end
    return false
  elseif #entry.keys ~= #keys then
    return false
  end
  local firsts = {}
  for _, key in ipairs(entry.keys) do
    if first_in(key) == token then
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
