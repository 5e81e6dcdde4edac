-- Several renewals of one client, each of one name.
--
-- KEYS: LAST, the main key of each
-- ARGV: for each: token, fence (empty for one who knows the token only), ttl (ms)
-- Reply: for each what `renew` answers alone, or 0 where it has to be asked alone to hear why not
-- Guards: what goes wrong with one is nothing to the others.
-- Bounds: the caller sends at most 256 renewals.

for _, i in ipairs(rest) do
  local ok, reply = pcall(renew, { KEYS[i] }, ARGV[3 * i - 5], ARGV[3 * i - 4], tonumber(ARGV[3 * i - 3]))
  replies[i - 1] = ok and reply or 0
end
return replies
