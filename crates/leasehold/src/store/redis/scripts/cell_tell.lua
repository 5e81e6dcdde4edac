-- Tells who watches a value that was changed without a script.
--
-- KEYS: the value's key, {key}:watch, {key}:fence (not used)
-- ARGV: none
-- Reply: 1

tell_watchers(KEYS[2], KEYS[1])
return 1
