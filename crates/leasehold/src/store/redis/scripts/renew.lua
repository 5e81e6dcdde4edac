-- Makes a claim last at least another TTL. Touches main keys only (A16).
--
-- KEYS: LAST, the main key of each name
-- ARGV: 1 token, 2 fence (empty for one who knows the token only), 3 ttl (ms)
-- Reply: 1 or until (renewed) | lost taken | lost deleted
-- Guards: token and fence are proven; a claim that has gone is never made again; nothing is ever shortened.

local function renew(keys, token, fence, ttl)
  local held = own_all(keys, token)
  if not held or (fence ~= '' and hex(held[1].fence) ~= fence) then
    return { 'lost', gone(keys) }
  end
  for i, key in ipairs(keys) do
    rearm(key, held[i], ttl)
  end
  return { 'until' }
end
