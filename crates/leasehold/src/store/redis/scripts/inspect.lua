-- How things stand with one name.
--
-- KEYS: LAST, its main key
-- ARGV: none
-- Reply: type, {VALUE or member, left(ms), …}, {token, share, …}, the time (µs), {arrival of each waiter, …}; of an entry that cannot
--        be parsed, or a queue whose keys have the wrong type, the share is `?` and the arrival 0
-- Changes nothing but what has ended.
-- Bounds: HOLDERS_MAX holders and SCRIPT_STEPS_MAX waiters are returned, and BYTES_MAX of their entries read.

local key = KEYS[2]
local kind = type_of(key)
local holders, waiters, arrivals = {}, {}, {}
if kind == 'string' then
  holders = { shown(redis.call('GET', key)), redis.call('PTTL', key) }
elseif kind == 'zset' then
  purge(key)
  local found = redis.call('ZRANGE', key, 0, HOLDERS_MAX - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    holders[#holders + 1] = shown(found[i])
    holders[#holders + 1] = left_of(found[i + 1])
  end
end
if damage(key) then
  return { kind, holders, { '', '?' }, NOW, { 0 } }
end
for _, token in ipairs(redis.call('LRANGE', line_of(key), 0, SCRIPT_STEPS_MAX - 1)) do
  local entry, is_there
  if bytes_left >= 0 then
    entry, is_there = waiter_of(key, token)
  end
  if entry and entry.shows_until > NOW_MS then
    waiters[#waiters + 1] = token
    waiters[#waiters + 1] = entry.share
    arrivals[#arrivals + 1] = entry.arrival
  elseif is_there and not entry then
    waiters[#waiters + 1] = ''
    waiters[#waiters + 1] = '?'
    arrivals[#arrivals + 1] = 0
  end
end
return { kind, holders, waiters, NOW, arrivals }
