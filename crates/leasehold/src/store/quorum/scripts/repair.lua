-- Puts a lease back on a node that does not have it, once a majority of the others has just proven it (B7).
--
-- KEYS: BORN, the main key
-- ARGV: 1 run_id, 2 by how much a fence outlives its lease (ms), 3 token, 4 fence, 5 ttl (ms), 6 `!` or nothing,
--       7 until when (µs, by this clock)
-- Reply: time age, then 1 (done) | 0
-- Guards: only where nothing is and nothing newer was, so that no release and no later holder is undone.

local key, number, ttl_ms = KEYS[2], tonumber(ARGV[4], 16), tonumber(ARGV[5])
local age, last = age_ms(), last_of(key)
if NOW > tonumber(ARGV[7]) or held(key) ~= nil or last > number then
  return { NOW, age, 0 }
end
redis.call('SET', key, ARGV[3] .. '#' .. hex(number) .. ARGV[6], 'PX', ttl_ms)
raise(key, last, number, ttl_ms + tonumber(ARGV[2]))
return { NOW, age, 1 }
