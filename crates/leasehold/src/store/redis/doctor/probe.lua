-- Tries every command that the scripts need, on keys that nobody uses, and takes away what it made.
--
-- ARGV: 1 a main key, 2 its line, 3 its waiting room, 4 the fence, 5 a channel
-- Reply: command, error, command, error, … for those that failed
-- The keys are not in KEYS: then the server would refuse all of it for the sake of one.

local main, line, wait, fence, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local failed = {}

local function try(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) == 'table' and reply.err then
    failed[#failed + 1] = command
    failed[#failed + 1] = reply.err
    return false
  end
  return true
end

try('TIME')
try('GET', fence)
try('GET', main)
try('TYPE', main)
try('EXISTS', main)
try('PTTL', main)
try('PEXPIRE', main, 1000)
try('HGET', wait, 'x')
try('HDEL', wait, 'x')
try('HLEN', wait)
try('ZRANGE', main, 0, 0)
try('ZREMRANGEBYSCORE', main, '-inf', '+inf')
try('ZSCORE', main, 'x')
try('ZREM', main, 'x')
try('LLEN', line)
try('LINDEX', line, 0)
try('LRANGE', line, 0, 0)
try('LPOS', line, 'x')
try('LREM', line, 1, 'x')
try('LPOP', line)
try('LINSERT', line, 'BEFORE', 'x', 'y')
try('PUBLISH', channel, '')
try('PUBSUB', 'NUMSUB', channel)
-- Where nothing can be taken away, nothing is made.
if try('DEL', main) and try('DEL', line) and try('DEL', wait) then
  try('SET', main, 'x', 'PX', 1000)
  redis.pcall('DEL', main)
  try('ZADD', main, 1, 'x')
  try('RPUSH', line, 'x')
  try('LPUSH', line, 'x')
  try('HSET', wait, 'x', 'x')
  try('HSETNX', wait, 'x', 'x')
  try('HINCRBY', wait, '#b', 1)
  redis.pcall('DEL', main)
  redis.pcall('DEL', line)
  redis.pcall('DEL', wait)
end
return failed
