-- Takes of a rate limit whose window slides: a log of what was taken when. Takes that are close to each other are remembered as one, of the
-- time of the last.
--
-- KEYS: the log's key
-- ARGV: 1 how much, 2 the most in a period, 3 the period (µs), 4 how long takes are joined to a first one (µs)
-- Reply: 1 (taken) or 0, how much is used then, when to come again (µs), when all is to be had again (µs)
-- Errors: `no rate limit` for a log that is none of ours
-- Bounds: a log has at most GROUPS_MAX groups, since takes within a hundredth of the period are joined where the most is more than
--         that; a longer one is none of ours. Both loops go through it once.
-- Guards: in no period is more than the most taken, wherever it begins. Where the server's clock is set back, the log's own stands still.
--
-- The log: by how much its clock is ahead of the server's (16 digits, µs), how much is used (10), when the last group began (16); and of
-- each group when it was last taken from (16) and how much (10).

local HEAD, EACH, GROUPS_MAX = 42, 26, 512
local key, weight, most = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local period, apart = tonumber(ARGV[3]), tonumber(ARGV[4])

local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local log = redis.call('GET', key) or ''
local length = #log
local sub = string.sub

-- A number of a group; 0 for what is none.
local function number(from, to)
  local n = tonumber(sub(log, from, to))
  return n and n >= 0 and n < 1e16 and n or 0
end

local ahead, used, since, last = 0, 0, 0, 0
if length > 0 then
  if length <= HEAD or length > HEAD + GROUPS_MAX * EACH or (length - HEAD) % EACH > 0
    or not string.find(sub(log, 1, HEAD), '^%d+$') then
    return redis.error_reply('ERR no rate limit')
  end
  ahead, used, since = tonumber(sub(log, 1, 16)), tonumber(sub(log, 17, 26)), tonumber(sub(log, 27, 42))
  last = number(length - EACH + 1, length - 10)
end
local now = clock + ahead
local is_back = now < last
if is_back then
  ahead, now = last - clock, last
end

local from = HEAD + 1
while from < length and number(from, from + 15) + period <= now do
  used = math.max(used - number(from + 16, from + 25), 0)
  from = from + EACH
end

local function keep(groups)
  local head = string.format('%016.0f%010.0f%016.0f', ahead, used, since)
  redis.call('SET', key, head .. groups, 'PX', string.format('%.0f', math.ceil(period / 1000) + 1))
end

if used + weight > most then
  if is_back then
    keep(sub(log, from))
  end
  local missing, again = used + weight - most, 0
  local at = from
  while missing > 0 and at < length do
    again = number(at, at + 15) + period - now
    missing = missing - number(at + 16, at + 25)
    at = at + EACH
  end
  return { 0, used, again, last + period - now }
end

used = used + weight
if from < length and now - since < apart then
  weight = weight + number(length - 9, length)
  length = length - EACH
else
  since = now
end
keep(sub(log, from, length) .. string.format('%016.0f%010.0f', now, weight))
return { 1, used, 0, period }
