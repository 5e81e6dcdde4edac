-- What the scripts that change a value have in common.

-- Tells whoever watches the value that it has changed, and forgets them: whoever still watches says so again. At most 1024 are told;
-- the others find out when they look. A key of the wrong type in place of the watchers is deleted: another program wrote it.
local function tell_watchers(watch, key)
  local watchers = redis.pcall('ZRANGE', watch, 0, 1023)
  if watchers.err and not string.find(watchers.err, 'WRONGTYPE', 1, true) then
    redis.call('ZRANGE', watch, 0, 1023)
  end
  for _, channel in ipairs(watchers) do
    -- The value is written already, whether this client may publish there or not.
    redis.pcall('PUBLISH', channel, '=' .. key)
  end
  if watchers.err or #watchers > 0 then
    redis.call('DEL', watch)
  end
end
