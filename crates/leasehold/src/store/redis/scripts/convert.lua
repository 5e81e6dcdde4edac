-- Changes the share of a held claim without a gap, if it fits, with a new fence.
--
-- KEYS: LAST, the main key of each name
-- ARGV: 1 token, 2 fence (empty for one who knows the token only), 3 to which share, 4 lowest fence
-- Reply: converted fence fences left(ms; the least of all names) | refused | nothing | limit
-- Guards: a late duplicate of an earlier conversion changes nothing.

local keys = names()
local held = own_all(keys, ARGV[1])
if not held then
  return { 'nothing' }
end
local first, to = held[1], ARGV[3]
local left = first.left
for _, it in ipairs(held) do
  left = math.min(left, it.left)
end
if first.share == to then
  return { 'converted', hex(first.fence), first.n, left }
elseif ARGV[2] ~= '' and hex(first.fence) ~= ARGV[2] then
  return { 'nothing' }
end
for i, key in ipairs(keys) do
  if not fits(key, to, held[i].member or held[i].value) then
    return { 'refused' }
  end
end
local fence = take(1, tonumber(ARGV[4]))
if not fence then
  return damaged({}) or { 'limit' }
end
done()
for i, key in ipairs(keys) do
  drop(key, held[i])
  hold(key, to, value_of(first.token, fence, 1, first.detached, keys), math.max(held[i].left, 1))
end
if to ~= 'x' then
  admit_all(keys)
end
return done({ 'converted', hex(fence), 1, left })
