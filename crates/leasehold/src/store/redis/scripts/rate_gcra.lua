-- Takes of a rate limit that runs off evenly: how long it takes until all that was taken has run off.
--
-- KEYS: its key
-- ARGV: 1 how long this take needs to run off (ns), 2 the same of the most that may come at once (ns)
-- Reply: 1 (taken) or 0, how long all needs to run off then (ns), when to come again (µs), when all has run off (µs)
-- Guards: what has been taken and has not run off is never more than the most. Where the server's clock is set back, the limit's own
--         stands still.
--
-- The value, 16 digits each: by how much its clock is ahead of the server's (µs), when it was written (µs), and how long all needed to run
-- off then (ns).

local key, cost, most = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])

local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local value = redis.call('GET', key)
local ahead, last, full = 0, 0, 0
if value then
  if #value ~= 48 or not string.find(value, '^%d+$') then
    return redis.error_reply('ERR no rate limit')
  end
  ahead, last = tonumber(string.sub(value, 1, 16)), tonumber(string.sub(value, 17, 32))
  full = tonumber(string.sub(value, 33))
end
local now = clock + ahead
local is_back = now < last
if is_back then
  ahead, now = last - clock, last
end

full = math.max(full - (now - last) * 1000, 0)
local is_taken = full + cost <= most
local again = is_taken and 0 or math.ceil((full + cost - most) / 1000)
if is_taken then
  full = full + cost
end
if is_taken or is_back then
  local written = string.format('%016.0f%016.0f%016.0f', ahead, now, full)
  redis.call('SET', key, written, 'PX', string.format('%.0f', math.ceil(full / 1000000) + 1))
end
return { is_taken and 1 or 0, full, again, math.ceil(full / 1000) }
