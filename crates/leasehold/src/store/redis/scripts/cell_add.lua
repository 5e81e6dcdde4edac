-- Adds to a number, which gets its end when it is made, and tells who watches it.
--
-- KEYS: the number's key, {key}:watch
-- ARGV: 1 how much, 2 its ttl (ms) or nothing, 3 what watchers are told
-- Reply: the sum, as text: a number of this protocol's scripts has 53 bits
-- Guards: there is no moment at which a number that is to end has no end; what does not fit is refused by the server.

local key = KEYS[1]
local is_new = ARGV[2] ~= '' and redis.call('EXISTS', key) == 0
redis.call('INCRBY', key, ARGV[1])
if is_new then
  redis.call('PEXPIRE', key, ARGV[2])
end
local watchers = redis.call('ZRANGE', KEYS[2], 0, -1)
if #watchers > 0 then
  for _, channel in ipairs(watchers) do
    redis.call('PUBLISH', channel, ARGV[3])
  end
  redis.call('DEL', KEYS[2])
end
return redis.call('GET', key)
