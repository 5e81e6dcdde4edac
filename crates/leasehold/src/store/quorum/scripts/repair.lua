-- Puts a lease back on a node that does not have it, once a majority of the others has just proven it (B7).
--
-- KEYS: MEMORY, the main key
-- ARGV: 5 token, 6 fence, 7 ttl (ms), 8 `!` or nothing, 9 until when (µs, by this clock)
-- Reply: time age, then 1 (done) | 0
-- Guards: only where nothing is and nothing newer was, so that no release and no later holder is undone.

local key, number, ttl_ms = KEYS[2], tonumber(ARGV[6], 16), tonumber(ARGV[7])
local age, last = remembered(key)
if NOW > tonumber(ARGV[9]) or held(key) ~= nil or last > number then
  return { NOW, age, 0 }
end
redis.call('SET', key, ARGV[5] .. '#' .. hex(number) .. ARGV[8], 'PX', ttl_ms)
raise(key, last, number)
return { NOW, age, 1 }
