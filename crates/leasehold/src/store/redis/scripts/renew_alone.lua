-- Most renewals: one name, held alone.
if #KEYS == 2 and ARGV[2] ~= '' then
  local value = redis.pcall('GET', KEYS[2])
  local proof = ARGV[1] .. '#' .. ARGV[2]
  if type(value) == 'string' and (value == proof or #value <= #proof + 8 and string.sub(value, 1, #proof) == proof
    and string.find(value, '^/?%d*!?$', #proof + 1) and not string.find(value, '^%x', #proof + 1)) then
    if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[3]) then
      redis.call('PEXPIRE', KEYS[2], ARGV[3])
    end
    return 1
  end
end
