-- Writes or removes a value, on a condition, and tells who watches it.
--
-- KEYS: the value's key, {key}:watch
-- ARGV: 1 when (`always`, `absent`, `is`), 2 what it has to be for `is`, 3 `set` or `remove`, 4 the value, 5 its ttl (ms) or nothing,
--       6 what watchers are told
-- Reply: 1 (written) | 0 (the condition does not hold)
-- Guards: what is looked at and what is written are of one moment; a value that ends has its end from the start.

local key = KEYS[1]
if ARGV[1] ~= 'always' then
  local there = redis.call('GET', key)
  if ARGV[1] == 'absent' and there or ARGV[1] == 'is' and there ~= ARGV[2] then
    return 0
  end
end
if ARGV[3] == 'remove' then
  redis.call('DEL', key)
elseif ARGV[5] == '' then
  redis.call('SET', key, ARGV[4])
else
  redis.call('SET', key, ARGV[4], 'PX', ARGV[5])
end
tell_watchers(KEYS[2], ARGV[6])
return 1
