-- An operator's forced release: takes a name from whoever holds it, and raises the fence.
--
-- KEYS: LAST, its main key
-- ARGV: 1 lowest fence
-- Reply: evicted {VALUE or member, …} | foreign key type | limit
-- Guards: the next fence is higher than any before, also if nobody held it.

local key = KEYS[2]
local kind = type_of(key)
local holders = {}
if kind == 'string' then
  holders = { redis.call('GET', key) }
elseif kind == 'zset' then
  purge(key)
  holders = redis.call('ZRANGE', key, 0, -1)
elseif kind ~= 'none' then
  return { 'foreign', key, kind }
end
if not take(1, tonumber(ARGV[1])) then
  return { 'limit' }
end
local freed = { key }
for _, text in ipairs(holders) do
  local it
  if kind == 'string' then
    it = parsed(text)
  else
    it = member_of(text)
  end
  local its = it and own(key, it.token, it.keys)
  if its and it.keys ~= '' then
    -- Whoever claimed it with others has lost them all.
    for other in string.gmatch(it.keys, '[^\n]+') do
      local there = own(other, it.token, it.keys)
      if there then
        drop(other, there)
        freed[#freed + 1] = other
      end
    end
  end
end
redis.call('DEL', key)
admit(freed)
return done({ 'evicted', holders })
