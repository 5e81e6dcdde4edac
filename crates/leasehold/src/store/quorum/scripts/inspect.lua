-- Who holds names, and who waits.
--
-- KEYS: MEMORY, the main keys
-- Reply: time age, then for each: {value, left(ms), {waiting token, …}}, with an empty value for nobody and `foreign` behind the
--        tokens for a key that is no lock
-- Guards: nothing is changed, but for the birth of a node that has none.

local replies = { NOW, (remembered('')) }
for i = 2, #KEYS do
  local key = KEYS[i]
  local value = held(key)
  local waiting = redis.call('ZRANGE', '{' .. key .. '}:next', 0, 99)
  for j = 1, #waiting do
    waiting[j] = string.match(waiting[j], '^(.*)\n')
  end
  replies[i + 1] = { value or '', value and redis.call('PTTL', key) or 0, waiting, value == false and 'foreign' or '' }
end
return replies
