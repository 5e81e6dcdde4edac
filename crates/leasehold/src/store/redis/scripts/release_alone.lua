-- Most releases: one name, held alone, which nobody waits for.
if #KEYS == 2 and not ARGV[2] then
  local value = redis.pcall('GET', KEYS[2])
  local token = ARGV[1] .. '#'
  if type(value) == 'string' and string.sub(value, 1, #token) == token and not string.find(value, '\n', 1, true)
    and redis.call('EXISTS', '{' .. KEYS[2] .. '}:line') == 0 then
    redis.call('DEL', KEYS[2])
    return 1
  end
end
