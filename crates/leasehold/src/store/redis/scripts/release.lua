-- Gives up what a token holds, or its place in line, and serves the next: one step for a release, a cancel and a clean-up (A7).
--
-- KEYS: LAST, the main key of each name
-- ARGV: 1 token, 2 for how long ours are to keep off what it frees (ms), if at all
-- Reply: 1 (released, and nobody waits) | released more | nothing more, where `more` is 1 if there were too many to admit at once
-- Guards: only the token's own claim is touched; a grant never goes to nobody.

local function release(keys, token, moment)
  local held = own_all(keys, token)
  if not held then
    leave(keys, token)
    return done({ 'nothing', admit(keys) and 1 or 0 })
  end
  for i, key in ipairs(keys) do
    drop(key, held[i])
    if moment and redis.call('EXISTS', key) == 0 then
      redis.call('SET', yield_of(key), '', 'PX', moment)
      tell_one(key)
    end
  end
  return done({ 'released', admit(keys) and 1 or 0 })
end
