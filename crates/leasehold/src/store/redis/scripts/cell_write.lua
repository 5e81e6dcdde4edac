-- Writes or removes a value, on a condition, and tells who watches it.
--
-- KEYS: the value's key, {key}:watch, {key}:fence
-- ARGV: 1 when (`always`, `absent`, `is`, `fenced`), 2 what it has to be for `is`, or the fence (19 digits) for `fenced`,
--       3 `set` or `remove`, 4 the value, 5 its ttl (ms) or nothing, 6 what watchers are told, 7 for how long a fence is
--       remembered beyond the value (ms), for `fenced`
-- Reply: 1 (written) | 0 (the condition does not hold) | the fence, higher than this one, under which something was written
-- Guards: what is looked at and what is written are of one moment; a value that ends has its end from the start; a fence is
-- remembered for as long as there is a value, and its own time longer.

local key, when, ttl = KEYS[1], ARGV[1], ARGV[5]
-- `fence kept_ms`
local seen = redis.call('GET', KEYS[3])
if when == 'fenced' then
  -- As many digits, so that text compares as numbers do.
  if seen and string.sub(seen, 1, 19) > ARGV[2] then
    -- Where another program has removed the value, nobody has told the fence.
    if redis.call('PTTL', KEYS[3]) < 0 and redis.call('EXISTS', key) == 0 then
      redis.call('PEXPIRE', KEYS[3], string.sub(seen, 21))
    end
    return string.sub(seen, 1, 19)
  end
  seen = ARGV[2] .. ' ' .. ARGV[7]
elseif when ~= 'always' then
  local there = redis.call('GET', key)
  if when == 'absent' and there or when == 'is' and there ~= ARGV[2] then
    return 0
  end
end
if seen then
  local kept_ms = tonumber(string.sub(seen, 21))
  if ARGV[3] == 'remove' then
    redis.call('SET', KEYS[3], seen, 'PX', kept_ms)
  elseif ttl == '' then
    redis.call('SET', KEYS[3], seen)
  else
    redis.call('SET', KEYS[3], seen, 'PX', string.format('%.0f', tonumber(ttl) + kept_ms))
  end
end
if ARGV[3] == 'remove' then
  redis.call('DEL', key)
elseif ttl == '' then
  redis.call('SET', key, ARGV[4])
else
  redis.call('SET', key, ARGV[4], 'PX', ttl)
end
tell_watchers(KEYS[2], ARGV[6])
return 1
