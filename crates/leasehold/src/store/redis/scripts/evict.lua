-- An operator's forced release: takes a name from whoever holds it, raises the fence, and repairs the private keys of the name.
--
-- KEYS: LAST, its main key
-- ARGV: 1 lowest fence, 2 fence of the only holder to evict (hex; empty for all), 3 channel of notices
-- Reply: evicted {VALUE or member, left(ms), …} | foreign key type | limit
-- Guards: the next fence is higher than any before, also if nobody held it. A private key of the wrong type, or LAST with the wrong
-- type, is deleted: it can have been written by other programs only.
-- Bounds: HOLDERS_MAX holders are evicted one by one or returned; of those that were claimed with other names, STEPS_MAX such names
-- are freed, and the rest ends by its TTL.

local key, only = KEYS[2], ARGV[2] or ''
local kind = type_of(key)
local holders = {}
if kind == 'string' then
  holders = { redis.call('GET', key) }
elseif kind == 'zset' then
  purge(key)
  holders = redis.call('ZRANGE', key, 0, HOLDERS_MAX - 1)
elseif kind ~= 'none' then
  return { 'foreign', key, kind }
end
for _ = 1, 4 do
  local broken = damaged({ key })
  if broken then
    redis.call('DEL', broken[2])
    damages[key] = nil
  end
end
if not take(1, tonumber(ARGV[1])) then
  return { 'limit' }
end
local freed, evicted, steps = { key }, {}, STEPS_MAX
for _, text in ipairs(holders) do
  local it
  if kind == 'string' then
    it = parsed(text)
  else
    it = member_of(text)
  end
  if only == '' or it and hex(it.fence) == only then
    evicted[#evicted + 1] = shown(text)
    evicted[#evicted + 1] = kind == 'zset' and left_of(redis.call('ZSCORE', key, text)) or redis.call('PTTL', key)
    if only ~= '' and kind == 'zset' then
      redis.call('ZREM', key, text)
    elseif only ~= '' then
      redis.call('DEL', key)
    end
    -- A holder that claimed it with other names loses them all. The same text stands in each of their keys.
    local count = 0
    for other in string.gmatch(it and it.keys or '', '[^\n]+') do
      count = count + 1
      if steps == 0 or count > NAMES_MAX then
        break
      end
      steps = steps - 1
      if other ~= key and type_of(other) == kind then
        if kind == 'zset' and redis.call('ZREM', other, text) == 1 then
          freed[#freed + 1] = other
        elseif kind == 'string' and redis.call('GET', other) == text then
          redis.call('DEL', other)
          freed[#freed + 1] = other
        end
      end
    end
  end
end
if only == '' then
  redis.call('DEL', key)
elseif #evicted == 0 then
  return { 'evicted', {} }
end
admit_all(freed)
local reply = done({ 'evicted', evicted })
-- Last, so that a holder who checks its lease finds it gone.
if ARGV[3] and #evicted > 0 then
  redis.call('PUBLISH', ARGV[3], 'evicted\n' .. key)
end
return reply
