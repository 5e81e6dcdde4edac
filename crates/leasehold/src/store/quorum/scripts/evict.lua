-- An operator's forced release: takes a name from whoever holds it, and raises the fence.
--
-- KEYS: BORN, the main key
-- ARGV: 1 run_id, 2 by how much a fence outlives its lease (ms), 3 a fence
-- Reply: time age, then the value, or nothing | foreign
-- Guards: the next fence is higher than any before, also if nobody held it.

local key = KEYS[2]
local age, last, value = age_ms(), last_of(key), held(key)
if value == false then
  return { NOW, age, '', 'foreign' }
end
local number = math.max(last + 1, tonumber(ARGV[3], 16))
redis.call('DEL', key)
raise(key, last, number, tonumber(ARGV[2]))
wake(key, number)
return { NOW, age, value or '' }
