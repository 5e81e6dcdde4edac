-- Has a lease go on without its client: it ends this TTL from now, once; one that is detached already is renewed.
--
-- KEYS: BORN, the main key
-- ARGV: 1 run_id, 2 by how much a fence outlives its lease (ms), 3 token, 4 fence (or empty), 5 ttl (ms)
-- Reply: as of one renewal
-- Guards: nothing is made again that has gone; the end is set back at most once.

local key, token, wanted, ttl_ms = KEYS[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local age, value = age_ms(), held(key)
local fence, rest = own(value, token)
if fence and (wanted == '' or hex(fence) == wanted) then
  if rest == '!' then
    extend(key, ttl_ms)
  else
    redis.call('SET', key, value .. '!', 'PX', ttl_ms)
  end
  raise(key, last_of(key), fence, ttl_ms + tonumber(ARGV[2]))
  return { NOW, age, hex(fence) .. '!' }
elseif value then
  return { NOW, age, 2 }
end
return { NOW, age, value == false and 3 or 1 }
