-- What the scripts that change a value have in common.

-- Tells whoever watches the value that it has changed, and forgets them: whoever still watches says so again.
local function tell_watchers(watch, key)
  local watchers = redis.call('ZRANGE', watch, 0, -1)
  if #watchers > 0 then
    for _, channel in ipairs(watchers) do
      redis.call('PUBLISH', channel, '=' .. key)
    end
    redis.call('DEL', watch)
  end
end
