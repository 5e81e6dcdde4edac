-- What is not as quick as `cell_write_plain.lua`: somebody watches, or there is a fence, or there is to be one. `when`, `ttl` and
-- `there` are set, and the condition holds, unless it is that of a fence.

-- `fence kept_ms`
local seen = redis.pcall('GET', KEYS[3])
if type(seen) == 'table' and not string.find(seen.err, 'WRONGTYPE', 1, true) then
  redis.call('GET', KEYS[3])
end
if seen and not (type(seen) == 'string' and #seen <= 36 and string.find(seen, '^%d+ %d+$') and string.sub(seen, 20, 20) == ' ') then
  -- Another program wrote it. Whether an older fence may write is not known; other writes do not ask.
  if when == 'fenced' then
    return redis.error_reply('ERR no fence')
  end
  seen = nil
end
if when == 'fenced' then
  -- As many digits, so that text compares as numbers do.
  if seen and string.sub(seen, 1, 19) > ARGV[2] then
    -- Where another program has removed the value, nobody has told the fence.
    if redis.call('PTTL', KEYS[3]) < 0 and redis.call('EXISTS', KEYS[1]) == 0 then
      redis.call('PEXPIRE', KEYS[3], string.sub(seen, 21))
    end
    return string.sub(seen, 1, 19)
  end
  seen = ARGV[2] .. ' ' .. ARGV[6]
end
if seen then
  local kept_ms = math.max(tonumber(string.sub(seen, 21)), 1)
  if ARGV[3] == 'remove' then
    redis.call('SET', KEYS[3], seen, 'PX', kept_ms)
  elseif ttl == '' then
    redis.call('SET', KEYS[3], seen)
  else
    redis.call('SET', KEYS[3], seen, 'PX', string.format('%.0f', tonumber(ttl) + kept_ms))
  end
end
write()
tell_watchers(KEYS[2], KEYS[1])
return 1
