-- An operator's repair: gives an end to a key that has none.
--
-- KEYS: LAST, its main key
-- ARGV: 1 ttl (ms)
-- Reply: adopted value | ends value left(ms) | nothing | foreign key type
-- Guards: an end that is there is neither moved nor taken away; no key is made.

local key = KEYS[2]
local kind = type_of(key)
if kind == 'string' then
  local value, left = redis.call('GET', key), redis.call('PTTL', key)
  if left >= 0 then
    return { 'ends', shown(value), left }
  end
  redis.call('PEXPIRE', key, ARGV[1])
  return { 'adopted', shown(value) }
elseif kind == 'zset' then
  -- Who holds it together: each of them has an end.
  if select(2, fits(key, 'x')) == 'foreign' then
    return { 'foreign', key, kind }
  end
  local last_one = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if last_one[1] then
    local it = member_of(last_one[1])
    return { 'ends', it and it.value or '?', left_of(last_one[2]) }
  end
elseif kind ~= 'none' then
  return { 'foreign', key, kind }
end
return { 'nothing' }
