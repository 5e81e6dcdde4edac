-- Who holds names, and who waits.
--
-- KEYS: MEMORY, the main keys
-- Reply: time age, then for each: {value, left(ms), {waiting token, …}, '' or `foreign` for a key that is no lock,
--        {arrival of each who waits (µs), …}}, with an empty value for nobody
-- Guards: nothing is changed, but for the birth of a node that has none, and keys of the wrong type.

local replies = { NOW, (remembered('')) }
for i = 2, #KEYS do
  local key = KEYS[i]
  local value = held(key)
  local line, waiting, arrivals = '{' .. key .. '}:next', {}, {}
  local found = redis.pcall('ZRANGE', line, 0, 99, 'WITHSCORES')
  if found.err then
    found = is_wrong_type(found, line) and {} or redis.call('ZRANGE', line, 0, 99, 'WITHSCORES')
  end
  for j = 1, #found, 2 do
    local member, score = found[j], tonumber(found[j + 1])
    local at = #member <= TEXT_MAX and string.find(member, '\n', 1, true)
    waiting[#waiting + 1] = at and string.sub(member, 1, at - 1) or '?'
    -- A score that another program wrote may be no number that fits.
    arrivals[#arrivals + 1] = score and score >= 0 and score <= FENCE_MAX and decimal(score) or '0'
  end
  replies[i + 1] = {
    value and shown(value) or '', value and redis.call('PTTL', key) or 0, waiting, value == false and 'foreign' or '', arrivals,
  }
end
return replies
