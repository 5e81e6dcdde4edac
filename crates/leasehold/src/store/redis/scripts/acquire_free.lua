-- Most claims are plain: one name, to have it alone, with one fence. As few calls as it takes for one that nobody holds and nobody
-- waits for, and for one that somebody else holds alone; everything else is decided below. Their terms are, to the letter,
-- `plain`, waits, `1`, `x`, shows itself within, `0`.
if string.byte(ARGV[5]) == 112 then
  local call, token, key = redis.call, ARGV[1], KEYS[2]
  local time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  if now <= tonumber(ARGV[3]) then
    local number = math.max(now, tonumber(ARGV[4]))
    local first = string.format('%x', number)
    -- A key of the wrong type is reported below; any other error is raised here.
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
      local line = '{' .. key .. '}:line'
      -- What is there, if anything; an error where that is no lock, or the server is too old for it.
      local value = redis.pcall('SET', key, token .. '#' .. first, 'NX', 'GET', 'PX', ARGV[2])
      if not value then
        if redis.pcall('EXISTS', line, '{' .. key .. '}:yield') == 0 then
          return first
        end
        -- Those who wait go first, and others have their chance; and nothing is kept by one who may not look there.
        call('DEL', key)
      elseif type(value) == 'string' and string.byte(ARGV[5], 7) == 49 and string.sub(value, 1, #token) ~= token then
        local wait, show = '{' .. key .. '}:wait', tonumber(string.sub(ARGV[5], 13, -3))
        local shows_until = string.format('%d', now / 1000 + show)
        local entry = 'x\n1\n0\n1\n' .. shows_until .. '\n' .. ARGV[2] .. '\n' .. ARGV[6] .. '\n' .. first .. '\n' .. key
        local is_new = redis.pcall('HSETNX', wait, token, entry)
        if type(is_new) == 'table' and not string.find(is_new.err, 'WRONGTYPE', 1, true) then
          call('HSETNX', wait, token, entry)
        end
        local place = is_new == 1 and redis.pcall('RPUSH', line, token)
        if type(place) == 'table' then
          call('HDEL', wait, token)
          if not string.find(place.err, 'WRONGTYPE', 1, true) then
            call('RPUSH', line, token)
          end
        elseif place then
          -- They end by themselves if everybody forgets them; mostly that is far enough off already.
          if place == 1 or call('PTTL', wait) < show * 2 then
            call('PEXPIRE', line, show * 4)
            call('PEXPIRE', wait, show * 4)
          end
          if place > 1 then
            return 'q' .. first
          end
          -- The first in line watches the holder's end. One of another library will not tell of it.
          local left = call('PTTL', key)
          if left < 0 then
            left = 100
          else
            -- As `parsed` in the prelude decides. What is longer than 65536 bytes is not ours.
            local ends = string.find(value, '\n', 1, true) or #value + 1
            local at = #value <= 65536 and string.match(string.sub(value, 1, ends - 1), '^.*#()')
            if not at or ends - at > 24 or not string.find(string.sub(value, at, ends - 1), '^%x+/?%d*!?$') then
              left = math.min(left, 100)
            end
          end
          return { 'queued', first, math.max(math.min(tonumber(ARGV[2]), left), 1) }
        end
      end
    end
  end
end
