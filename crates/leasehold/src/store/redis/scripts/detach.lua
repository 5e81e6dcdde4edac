-- Has a claim live by its TTL alone, which counts from now; of one that does already, moves the end on, never back.
--
-- KEYS: LAST, the main key of each name
-- ARGV: 1 token, 2 fence, any of its block (empty for one who knows the token only), 3 ttl (ms)
-- Reply: until | lost taken | lost deleted
-- Guards: a late duplicate takes nothing away.

local keys = names()
local ttl = tonumber(ARGV[3])
local held = own_all(keys, ARGV[1])
local fence = tonumber(ARGV[2], 16)
local first = held and held[1]
if not first or (fence and (fence < first.fence or fence > first.fence + first.n - 1)) then
  return { 'lost', gone(keys) }
end
for i, key in ipairs(keys) do
  local it = held[i]
  if it.detached then
    rearm(key, it, ttl)
  else
    local value = value_of(it.token, fence or it.fence, fence and 1 or it.n, true, keys)
    if it.kind ~= 'x' then
      redis.call('ZREM', key, it.member)
    end
    hold(key, it.share, value, ttl)
    tell_first(key)
  end
end
return { 'until' }
