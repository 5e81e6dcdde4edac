-- How things stand with one name.
--
-- KEYS: LAST, its main key
-- ARGV: none
-- Reply: type, {VALUE or member, left(ms), …}, {token, share, …}
-- Changes nothing but what has ended.

local key = KEYS[2]
local kind = type_of(key)
local holders, waiters = {}, {}
if kind == 'string' then
  holders = { redis.call('GET', key), redis.call('PTTL', key) }
elseif kind == 'zset' then
  purge(key)
  local found = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #found, 2 do
    holders[#holders + 1] = found[i]
    holders[#holders + 1] = tonumber(found[i + 1]) - NOW_MS
  end
end
for _, token in ipairs(redis.call('LRANGE', line_of(key), 0, -1)) do
  local text = redis.call('HGET', wait_of(key), token)
  local entry = text and entry_of(text)
  if entry and entry.shows_until > NOW_MS then
    waiters[#waiters + 1] = token
    waiters[#waiters + 1] = entry.share
  end
end
return { kind, holders, waiters }
