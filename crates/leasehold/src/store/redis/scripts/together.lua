-- Several claims and releases of one client, each of one name, in the order in which they were asked for.
--
-- KEYS: LAST, the main key of each
-- ARGV: 1 not after (server's µs), 2 lowest fence, 3 how many plain claims and shares there are, 4 channel; then for each: token,
--       ttl (ms) and terms for a claim; token and nothing for a release, or token, `-` and what stands there, for that of a share
-- Reply: for each what `acquire` or `release` answers alone, or 0 where it has to be asked alone to hear why not
-- Guards: what goes wrong with one is nothing to the others.
-- Bounds: the caller sends at most 64 requests; the steps of all their calls of `admit` are SCRIPT_STEPS_MAX.

for _, it in ipairs(rest) do
  local keys, at = { KEYS[it[1]] }, it[2]
  local ok, reply
  if ARGV[at + 1] == '' or ARGV[at + 1] == '-' then
    ok, reply = pcall(release, keys, ARGV[at])
  else
    ok, reply = pcall(
      acquire, keys, ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[at + 2], ARGV[4]
    )
  end
  replies[it[1] - 1] = ok and reply or 0
end
return done(replies)
