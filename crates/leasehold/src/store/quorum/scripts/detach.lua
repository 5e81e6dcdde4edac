-- Has a lease go on without its client: it ends this TTL from now, once; one that is detached already is renewed.
--
-- KEYS: MEMORY, the main key
-- ARGV: 5 token, 6 fence (or empty), 7 ttl (ms)
-- Reply: as of one renewal
-- Guards: nothing is made again that has gone; the end is set back at most once.

local key, token, wanted, ttl_ms = KEYS[2], ARGV[5], ARGV[6], tonumber(ARGV[7])
local age, value = remembered(key), held(key)
local fence, rest = own(value, token)
if fence and (wanted == '' or hex(fence) == wanted) then
  if rest == '!' then
    extend(key, ttl_ms)
  else
    redis.call('SET', key, value .. '!', 'PX', ttl_ms)
  end
  return { NOW, age, hex(fence) .. '!' }
elseif value then
  return { NOW, age, 2 }
end
return { NOW, age, value == false and 3 or 1 }
