-- An operator's repair: gives an end to a key that has none.
--
-- KEYS: MEMORY, the main key
-- ARGV: 5 ttl (ms)
-- Reply: time age, then adopted value | ends value left(ms) | nothing | foreign
-- Guards: an end that is there is neither moved nor taken away; no key is made.

local key = KEYS[2]
local age, value = remembered(key), held(key)
if value == false then
  return { NOW, age, 'foreign' }
elseif not value then
  return { NOW, age, 'nothing' }
end
local left = redis.call('PTTL', key)
if left >= 0 then
  return { NOW, age, 'ends', shown(value), left }
end
redis.call('PEXPIRE', key, ARGV[5])
return { NOW, age, 'adopted', shown(value) }
