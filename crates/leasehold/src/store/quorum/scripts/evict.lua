-- An operator's forced release: takes a name from whoever holds it, and raises the fence.
--
-- KEYS: MEMORY, the main key
-- ARGV: 5 a fence
-- Reply: time age, then the value, or nothing | foreign
-- Guards: the next fence is higher than any before, also if nobody held it.

local key = KEYS[2]
local age, last = remembered(key)
local value = held(key)
if value == false then
  return { NOW, age, '', 'foreign' }
end
local number = math.max(last + 1, math.min(tonumber(ARGV[5], 16), NOW + S))
redis.call('DEL', key)
raise(key, last, number)
wake(key, number)
return { NOW, age, value or '' }
