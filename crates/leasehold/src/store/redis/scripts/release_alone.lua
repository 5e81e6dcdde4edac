-- Most releases: one name, held alone, which nobody waits for, or somebody who wants it alone.
if #KEYS == 2 and not ARGV[2] then
  local call, key = redis.call, KEYS[2]
  local value = redis.pcall('GET', key)
  local token = ARGV[1] .. '#'
  if type(value) == 'string' and string.sub(value, 1, #token) == token and not string.find(value, '\n', 1, true) then
    local line = '{' .. key .. '}:line'
    local next = redis.pcall('LPOP', line)
    if type(next) == 'table' and not string.find(next.err, 'WRONGTYPE', 1, true) then
      call('LPOP', line)
    elseif not next then
      call('DEL', key)
      return 1
    end
    next = type(next) == 'string' and next or ''
    local wait = '{' .. key .. '}:wait'
    local entry = redis.pcall('HGET', wait, next)
    entry = type(entry) == 'string' and #entry < 4096 and entry or ''
    -- What is not to the letter as `acquire` writes it, or names another key, is left to the general case.
    local n, shows_until, ttl, at = string.match(entry, '^x\n(%d+)\n0\n1\n(%d+)\n(%d+)\n()')
    local ends = at and string.find(entry, '\n', at, true)
    local key_at = ends and string.match(entry, '^%x+\n()', ends + 1)
    local is_ours = key_at and string.sub(entry, key_at) == key and #next <= 256 and not string.find(next, '\n', 1, true)
      and #n <= 4 and tonumber(n) > 0 and #shows_until <= 15 and #ttl <= 10 and tonumber(ttl) > 0
    local channel = is_ours and string.sub(entry, at, ends - 1)
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
      -- Counted first, published last: a message also reaches the clients of replicas (see `listens` in the prelude).
      local counted = type(last) ~= 'table' and fence <= 9007199254740992 - count and redis.pcall('PUBSUB', 'NUMSUB', channel)
      if counted and not counted.err and counted[2] > 0 then
        call('SET', key, next .. '#' .. first .. (several and '/' .. n or ''), 'PX', ttl)
        call('HDEL', wait, next)
        local message = next .. '\n' .. first .. (several and '\n' .. n or '')
        local heard = redis.pcall('PUBLISH', channel, message)
        -- As `tell` in the prelude: a channel that another program wrote is nobody's error.
        if type(heard) == 'table' and not string.find(heard.err, 'channel', 1, true) then
          call('PUBLISH', channel, message)
        end
        return 1
      end
    end
    -- Back in its place: it is to be judged like any other.
    if next ~= '' then
      call('LPUSH', line, next)
      call('PEXPIRE', line, math.max(call('PTTL', wait), 1), 'NX')
    end
  end
end
