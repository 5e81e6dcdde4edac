-- Takes of a rate limit whose windows follow each other: a number that gets its end when it is made.
--
-- KEYS: the number's key
-- ARGV: 1 how much, 2 the most in a window, 3 how long a window is (ms)
-- Reply: 1 (taken) or 0, how much is used then, when to come again (µs), when the window ends (µs)
-- Guards: there is no moment at which the number has no end; in one window no more than the most is taken. A number without an end, or with
--         one that is too far off since the server's clock was set back, gets its end anew: nobody is kept out for good.

local key, weight, most, period = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local text = redis.call('GET', key) or '0'
local used = #text <= 15 and string.find(text, '^%d+$') and tonumber(text)
if not used then
  return redis.error_reply('ERR no rate limit')
end
local left = redis.call('PTTL', key)
if left == -1 or left > period then
  redis.call('PEXPIRE', key, ARGV[3])
  left = period
end
local is_taken = used + weight <= most
if is_taken then
  used = redis.call('INCRBY', key, ARGV[1])
  if left < 0 then
    redis.call('PEXPIRE', key, ARGV[3])
    left = period
  end
end
-- A key is there until the millisecond after its end.
local ends = (left + 1) * 1000
return { is_taken and 1 or 0, used, is_taken and 0 or ends, ends }
