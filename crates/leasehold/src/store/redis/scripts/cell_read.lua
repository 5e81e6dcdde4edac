-- What a value is, and for how long.
--
-- KEYS: the value's key, {key}:watch, {key}:fence (not used)
-- ARGV: none
-- Reply: nothing | value, what is left of it (ms, or less than 0 for one without an end)

local value = redis.call('GET', KEYS[1])
return value and { value, redis.call('PTTL', KEYS[1]) }
