-- Most releases: one name, held alone, which nobody waits for, or somebody who wants it alone.
if #KEYS == 2 and not ARGV[2] then
  local call, key = redis.call, KEYS[2]
  local value = redis.pcall('GET', key)
  local token = ARGV[1] .. '#'
  if type(value) == 'string' and string.sub(value, 1, #token) == token and not string.find(value, '\n', 1, true) then
    local line = '{' .. key .. '}:line'
    local next = call('LPOP', line)
    if not next then
      call('DEL', key)
      return 1
    end
    local wait = '{' .. key .. '}:wait'
    local entry = redis.pcall('HGET', wait, next)
    local n, shows_until, ttl, at =
      string.match(type(entry) == 'string' and entry or '', '^x\n(%d+)\n0\n1\n(%d+)\n(%d+)\n()')
    local channel = at and string.sub(entry, at, (string.find(entry, '\n', at, true) or at) - 1)
    local time = call('TIME')
    local now = time[1] * 1000000 + time[2]
    if channel and channel ~= '' and tonumber(shows_until) > now / 1000 then
      local fence, count = now, tonumber(n)
      local top = string.format('%x', fence + count - 1)
      local last = redis.pcall('SET', KEYS[1], top, 'GET')
      local before = type(last) == 'string' and tonumber(last, 16) or 0
      if before >= fence then
        -- The clock was set back, or somebody was here within this microsecond.
        fence = before + 1
        top = string.format('%x', fence + count - 1)
        call('SET', KEYS[1], fence <= 9007199254740992 - count and top or last)
      end
      local first, several = top, count > 1 and n
      if several then
        first = string.format('%x', fence)
      end
      local told = type(last) ~= 'table' and fence <= 9007199254740992 - count
        and redis.pcall('PUBLISH', channel, next .. '\n' .. first .. (several and '\n' .. n or ''))
      if type(told) == 'number' and told > 0 then
        call('SET', key, next .. '#' .. first .. (several and '/' .. n or ''), 'PX', ttl)
        call('HDEL', wait, next)
        return 1
      end
    end
    -- Back in its place: it is to be judged like any other.
    call('LPUSH', line, next)
    call('PEXPIRE', line, math.max(call('PTTL', wait), 1), 'NX')
  end
end
