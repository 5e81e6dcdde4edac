-- Gives up what a token holds, or its place in line, and serves the next: one step for a release, a cancel and a clean-up (A7).
--
-- KEYS: LAST, the main key of each name
-- ARGV: 1 token, 2 for how long ours are to keep off what it frees (ms), if at all
-- Reply: 1 (released, and nobody waits) | released more | nothing more, where `more` is 1 if there were too many to admit at once
-- Guards: only the token's own claim is touched; a grant never goes to nobody.

local keys = names()
local held = own_all(keys, ARGV[1])
if not held then
  leave(keys, ARGV[1])
  return done({ 'nothing', admit(keys) and 1 or 0 })
end
for i, key in ipairs(keys) do
  drop(key, held[i])
  if ARGV[2] and redis.call('EXISTS', key) == 0 then
    redis.call('SET', yield_of(key), '', 'PX', ARGV[2])
    tell_one(key)
  end
end
return done({ 'released', admit(keys) and 1 or 0 })
