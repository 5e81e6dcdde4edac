-- An operator's forced release: takes a name from whoever holds it, and raises the fence.
--
-- KEYS: MEMORY, the main key
-- ARGV: 5 a fence, 6 fence of the only holder to evict (hex; empty for any), 7 channel of notices
-- Reply: time age, then the value and what is left of it (ms), or nothing | foreign
-- Guards: the next fence is higher than any before, also if nobody held it.

local key = KEYS[2]
local age, last = remembered(key)
local value = held(key)
if value == false then
  return { NOW, age, '', 'foreign' }
end
if ARGV[6] ~= '' then
  local fence = '#' .. ARGV[6]
  if not value or string.sub(value, -#fence) ~= fence and string.sub(value, -#fence - 1) ~= fence .. '!' then
    return { NOW, age, '' }
  end
end
local left = redis.call('PTTL', key)
local number = math.max(last + 1, math.min(tonumber(ARGV[5], 16), NOW + S))
redis.call('DEL', key)
raise(key, last, number)
wake(key, number)
if value then
  -- Last, so that a holder who checks its lease finds it gone here.
  redis.call('PUBLISH', ARGV[7], 'evicted\n' .. key)
end
return { NOW, age, value and shown(value) or '', left }
