-- Most releases: one name, held alone, which nobody waits for, or somebody who wants it alone.
if #KEYS == 2 and not ARGV[2] then
  local call, key = redis.call, KEYS[2]
  local value = redis.pcall('GET', key)
  local token = ARGV[1] .. '#'
  if type(value) == 'string' and string.sub(value, 1, #token) == token and not string.find(value, '\n', 1, true) then
    local line = '{' .. key .. '}:line'
    local head = call('ZPOPMIN', line)
    local next = head[1]
    if not next then
      call('DEL', key)
      return 1
    end
    local wait = '{' .. key .. '}:wait'
    local entry = redis.pcall('HGET', wait, next)
    local shows_until, ttl, n, channel = string.match(type(entry) == 'string' and entry or '',
      '^(%d+)\n(%d+)\n(%d+)\nx\n([^\n]+)\n0\n[^\n]+$')
    local time = call('TIME')
    local now = time[1] * 1000000 + time[2]
    if channel and tonumber(shows_until) > now / 1000 then
      n = tonumber(n)
      local fence = now
      local last = redis.pcall('SET', KEYS[1], string.format('%x', fence + n - 1), 'GET')
      local before = type(last) == 'string' and tonumber(last, 16) or 0
      if before >= fence then
        -- The clock was set back, or somebody was here within this microsecond.
        fence = before + 1
        call('SET', KEYS[1], fence <= 9007199254740992 - n and string.format('%x', fence + n - 1) or last)
      end
      local first = string.format('%x', fence)
      local told = type(last) ~= 'table' and fence <= 9007199254740992 - n
        and redis.pcall('PUBLISH', channel, next .. '\n' .. first .. '\n' .. n)
      if type(told) == 'number' and told > 0 then
        call('SET', key, next .. '#' .. first .. (n > 1 and '/' .. n or ''), 'PX', ttl)
        call('HDEL', wait, next)
        return 1
      end
    end
    -- Back in its place: it is to be judged like any other.
    call('ZADD', line, head[2], next)
  end
end
