-- A share of one name, with one fence, that nobody holds and nobody waits for: as few calls as it takes. Everything else is decided
-- below.
if string.byte(ARGV[5]) == 115 then
  local call, key = redis.call, KEYS[2]
  local time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  if now <= tonumber(ARGV[3]) and call('EXISTS', key, '{' .. key .. '}:line', '{' .. key .. '}:yield') == 0 then
    local number = math.max(now, tonumber(ARGV[4]))
    local first = string.format('%x', number)
    local last = redis.pcall('SET', KEYS[1], first, 'GET')
    if type(last) == 'table' and not string.find(last.err, 'WRONGTYPE', 1, true) then
      call('SET', KEYS[1], first, 'GET')
    end
    local before = type(last) == 'string' and tonumber(last, 16) or 0
    if type(last) == 'table' then
      number = 9007199254740992
    elseif before >= number or number > 9007199254740991 then
      -- The clock was set back, or somebody was here within this microsecond; or there are no more.
      number = math.max(number, before + 1)
      first = string.format('%x', number)
      call('SET', KEYS[1], number <= 9007199254740991 and first or last or '0')
    end
    if number <= 9007199254740991 then
      local share = string.match(ARGV[5], '^share\n%d\n1\n([^\n]+)')
      call('ZADD', key, string.format('%.0f', math.floor(now / 1000) + ARGV[2]), share .. ':' .. ARGV[1] .. '#' .. first)
      call('PEXPIRE', key, ARGV[2])
      return first
    end
  end
end
