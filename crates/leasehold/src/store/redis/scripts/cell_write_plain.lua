-- Writes or removes a value, on a condition, and tells who watches it.
--
-- KEYS: the value's key, {key}:watch, {key}:fence
-- ARGV: 1 when (`always`, `absent`, `is`, `fenced`), 2 what it has to be for `is`, or the fence (19 digits) for `fenced`,
--       3 `set` or `remove`, 4 the value, 5 its ttl (ms) or nothing, 6 for how long a fence is remembered beyond the value (ms),
--       for `fenced`
-- Errors: `no fence` where another program wrote to {key}:fence, for `fenced`
-- Reply: 1 (written) | 0 (the condition does not hold) | the fence, higher than this one, under which something was written
-- Guards: what is looked at and what is written are of one moment; a value that ends has its end from the start; a fence is
-- remembered for as long as there is a value, and its own time longer.

local when, ttl = ARGV[1], ARGV[5]
if when == 'is' then
  if redis.call('GET', KEYS[1]) ~= ARGV[2] then
    return 0
  end
elseif when == 'absent' and redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end

local function write()
  if ARGV[3] == 'remove' then
    redis.call('DEL', KEYS[1])
  elseif ttl == '' then
    redis.call('SET', KEYS[1], ARGV[4])
  else
    redis.call('SET', KEYS[1], ARGV[4], 'PX', ttl)
  end
end

-- Most values have nobody who watches them, and no fence.
if when ~= 'fenced' and redis.call('EXISTS', KEYS[2], KEYS[3]) == 0 then
  write()
  return 1
end
