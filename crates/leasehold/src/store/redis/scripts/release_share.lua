-- Most releases of a share: of one name, which nobody waits for. Whoever holds it knows what stands there for it (ARGV 2).
local ends = redis.pcall('ZSCORE', KEYS[2], ARGV[2])
if type(ends) == 'string' then
  local time = redis.call('TIME')
  if (tonumber(ends) or 0) > math.floor((time[1] * 1000000 + time[2]) / 1000)
    and redis.call('EXISTS', '{' .. KEYS[2] .. '}:line') == 0 then
    redis.call('ZREM', KEYS[2], ARGV[2])
    return 1
  end
end
