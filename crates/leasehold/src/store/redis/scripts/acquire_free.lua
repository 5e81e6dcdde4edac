-- Most claims are plain: one name, to have it alone, with one fence. As few calls as it takes for one that nobody holds and nobody
-- waits for, and for one that somebody else holds alone; everything else is decided below.
if string.byte(ARGV[5]) == 112 then
  local call, token, key = redis.call, ARGV[1], KEYS[2]
  local time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  if now <= tonumber(ARGV[3]) then
    local number = math.max(now, tonumber(ARGV[4]))
    local first = string.format('%x', number)
    local last = call('SET', KEYS[1], first, 'GET')
    local before = last and tonumber(last, 16) or 0
    if before >= number or number > 9007199254740991 then
      -- The clock was set back, or somebody was here within this microsecond; or there are no more.
      number = math.max(number, before + 1)
      first = string.format('%x', number)
      call('SET', KEYS[1], number <= 9007199254740991 and first or last or '0')
    end
    if number <= 9007199254740991 then
      local line = '{' .. key .. '}:line'
      -- What is there, if anything; an error where that is no lock, or the server is too old for it.
      local value = redis.pcall('SET', key, token .. '#' .. first, 'NX', 'GET', 'PX', ARGV[2])
      if not value then
        if redis.pcall('EXISTS', line, '{' .. key .. '}:yield') == 0 then
          return first
        end
        -- Those who wait go first, and others have their chance; and nothing is kept by one who may not look there.
        call('DEL', key)
      elseif type(value) == 'string' and string.byte(ARGV[5], 7) == 49 and string.sub(value, 1, #token) ~= token
        and call('ZADD', line, 'NX', string.format('%.0f', number), token) == 1 then
        local wait, ttl = '{' .. key .. '}:wait', tonumber(ARGV[2])
        local show = tonumber(string.match(ARGV[5], '(%d+)\n0$'))
        local until_ = string.format('%.0f', math.floor(now / 1000) + show)
        call('HSET', wait, token, until_ .. '\n' .. ARGV[2] .. '\n1\nx\n' .. ARGV[6] .. '\n0\n' .. key)
        -- They end by themselves if everybody forgets them; mostly that is far enough off already.
        local ends = call('PTTL', wait)
        if ends < show * 2 then
          call('PEXPIRE', line, show * 4)
          call('PEXPIRE', wait, show * 4)
        end
        if ends >= 0 then
          return { 'queued', first, ttl }
        end
        -- The first in line watches the holder's end. One of another library will not tell of it.
        local left = call('PTTL', key)
        if left < 0 then
          left = 100
        elseif not string.find(value .. '\n', '#%x+/?%d*!?\n') then
          left = math.min(left, 100)
        end
        return { 'queued', first, math.max(math.min(ttl, left), 1) }
      end
    end
  end
end
