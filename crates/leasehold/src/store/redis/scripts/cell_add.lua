-- Adds to a number, which gets its end when it is made, and tells who watches it.
--
-- KEYS: the number's key, {key}:watch, {key}:fence (not used)
-- ARGV: 1 how much, 2 its ttl (ms) or nothing
-- Reply: the sum; as text where it is long: a number of this protocol's scripts has 53 bits
-- Guards: there is no moment at which a number that is to end has no end; what does not fit is refused by the server.

local key = KEYS[1]
local is_new = ARGV[2] ~= '' and redis.call('EXISTS', key) == 0
local sum = redis.call('INCRBY', key, ARGV[1])
if is_new then
  redis.call('PEXPIRE', key, ARGV[2])
end
tell_watchers(KEYS[2], key)
return math.abs(sum) < 9007199254740992 and sum or redis.call('GET', key)
