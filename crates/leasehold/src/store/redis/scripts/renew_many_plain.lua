-- Most renewals: names held alone. At most 256, as the caller sends them.
local replies, rest = {}, nil
for i = 2, #KEYS do
  local key, token, fence, ttl = KEYS[i], ARGV[3 * i - 5], ARGV[3 * i - 4], ARGV[3 * i - 3]
  local value = redis.pcall('GET', key)
  local proof = token .. '#' .. fence
  local is_plain = type(value) == 'string' and fence ~= '' and (value == proof or #value <= #proof + 8 and string.sub(value, 1, #proof) == proof
    and string.find(value, '^/?%d*!?$', #proof + 1) and not string.find(value, '^%x', #proof + 1))
  if is_plain then
    local left = redis.pcall('PTTL', key)
    if type(left) ~= 'number' or (left < tonumber(ttl) and redis.pcall('PEXPIRE', key, ttl) ~= 1) then
      is_plain = false
    end
  end
  replies[i - 1] = is_plain and 1 or 0
  if not is_plain then
    rest = rest or {}
    rest[#rest + 1] = i
  end
end
if not rest then
  return replies
end
