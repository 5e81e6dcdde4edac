-- What most of them come to, of at most 64 requests: names that nobody else has to do with. The numbers are taken first, so that none is given twice
-- whatever comes then.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local takes = tonumber(ARGV[3])
local fence
if takes > 0 and now <= tonumber(ARGV[1]) then
  fence = math.max(now, tonumber(ARGV[2]))
  local last = redis.call('SET', KEYS[1], string.format('%x', fence + takes - 1), 'GET')
  local before = last and tonumber(last, 16) or 0
  if before >= fence or fence > 9007199254740992 - takes then
    -- The clock was set back, or somebody was here within this microsecond; or there are no more.
    fence = math.max(fence, before + 1)
    if fence <= 9007199254740992 - takes then
      redis.call('SET', KEYS[1], string.format('%x', fence + takes - 1))
    else
      redis.call('SET', KEYS[1], last or '0')
      fence = nil
    end
  end
end
local call, replies, rest, at = redis.pcall, {}, nil, 5
for i = 2, #KEYS do
  local key, token, ttl = KEYS[i], ARGV[at], ARGV[at + 1]
  local reply
  if ttl == '' then
    local value = call('GET', key)
    local proof = token .. '#'
    if type(value) == 'string' and string.sub(value, 1, #proof) == proof and not string.find(value, '\n', 1, true)
      and call('EXISTS', '{' .. key .. '}:line') == 0 and call('DEL', key) == 1 then
      reply = 1
    end
  elseif ttl == '-' then
    -- A share, as it stands there.
    local ends = call('ZSCORE', key, ARGV[at + 2])
    if type(ends) == 'string' and tonumber(ends) > math.floor(now / 1000)
      and call('EXISTS', '{' .. key .. '}:line') == 0 and call('ZREM', key, ARGV[at + 2]) == 1 then
      reply = 1
    end
  elseif fence and string.byte(ARGV[at + 2]) == 115 and call('EXISTS', key, '{' .. key .. '}:line', '{' .. key .. '}:yield') == 0 then
    local first = string.format('%x', fence)
    local member = string.match(ARGV[at + 2], '^share\n%d\n1\n([^\n]+)') .. ':' .. token .. '#' .. first
    if call('ZADD', key, string.format('%.0f', math.floor(now / 1000) + ttl), member) == 1 and call('PEXPIRE', key, ttl) == 1 then
      reply, fence = first, fence + 1
    end
  elseif fence and string.byte(ARGV[at + 2]) == 112 and call('EXISTS', key, '{' .. key .. '}:line', '{' .. key .. '}:yield') == 0 then
    local first = string.format('%x', fence)
    if call('SET', key, token .. '#' .. first, 'PX', ttl).ok then
      reply, fence = first, fence + 1
    end
  end
  replies[i - 1] = reply or 0
  if not reply then
    rest = rest or {}
    rest[#rest + 1] = { i, at }
  end
  at = at + (ttl == '' and 2 or 3)
end
if not rest then
  return replies
end
