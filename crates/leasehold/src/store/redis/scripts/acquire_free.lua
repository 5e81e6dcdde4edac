-- Most claims: one name, to have it alone, with one fence, which nobody holds and nobody waits for. As few calls as it takes;
-- everything else is decided below.
if ARGV[5] == 'plain'
  and redis.call('EXISTS', KEYS[2], '{' .. KEYS[2] .. '}:line', '{' .. KEYS[2] .. '}:yield') == 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  if now <= tonumber(ARGV[3]) then
    local fence = math.max(now, tonumber(ARGV[4]))
    local first = string.format('%x', fence)
    local last = redis.call('SET', KEYS[1], first, 'GET')
    local before = last and tonumber(last, 16) or 0
    if before >= fence then
      -- The clock was set back, or somebody was here within this microsecond.
      fence = before + 1
      first = string.format('%x', fence)
      redis.call('SET', KEYS[1], fence <= 9007199254740991 and first or last)
    end
    if fence <= 9007199254740991 then
      redis.call('SET', KEYS[2], ARGV[1] .. '#' .. first, 'PX', ARGV[2])
      return first
    end
  end
end
