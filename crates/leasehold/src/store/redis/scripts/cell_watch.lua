-- Has a client told of the next change of a value, unless it has changed already.
--
-- KEYS: the value's key, {key}:watch, {key}:fence (not used)
-- ARGV: 1 SHA-1 of the value it knows, in hex, or nothing if it knows of none; 2 its channel, or nothing if nobody listens;
--       3 for how long (ms)
-- Reply: -1 (it is another value) | 0 (the same, without an end) | what is left of it (ms)
-- Guards: no change comes between the look and the watch; a watch ends by itself.

local there = redis.call('GET', KEYS[1])
if (there and redis.sha1hex(there) or '') ~= ARGV[1] then
  return -1
end
if ARGV[2] ~= '' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local purged = redis.pcall('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
  if type(purged) == 'table' then
    if not string.find(purged.err, 'WRONGTYPE', 1, true) then
      redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
    end
    -- Another program wrote it.
    redis.call('DEL', KEYS[2])
  end
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[3]), ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
return there and math.max(redis.call('PTTL', KEYS[1]), 0) or 0
