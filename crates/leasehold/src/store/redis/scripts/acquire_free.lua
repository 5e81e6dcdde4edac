-- Most claims: one name, to have it alone, which nobody holds and nobody waits for. As few calls as it takes; everything else
-- is decided below.
if #KEYS == 2 and ARGV[7] == 'x' and redis.call('EXISTS', '{' .. KEYS[2] .. '}:line') == 0 then
  local time = redis.call('TIME')
  local now, not_after, n = time[1] * 1000000 + time[2], tonumber(ARGV[5]), tonumber(ARGV[3])
  local fence = math.max((tonumber(redis.call('GET', KEYS[1])) or 0) + 1, now, ARGV[4] + 1)
  if (not_after == 0 or now <= not_after) and fence + n <= 9007199254740991 then
    local first = string.format('%.0f', fence)
    local value = ARGV[1] .. '#' .. first .. (n > 1 and '/' .. n or '') .. (ARGV[10] == '1' and '!' or '')
    if redis.call('SET', KEYS[2], value, 'NX', 'PX', ARGV[2]) then
      redis.call('SET', KEYS[1], n > 1 and string.format('%.0f', fence + n - 1) or first)
      return { 'granted', first, n }
    end
  end
end
