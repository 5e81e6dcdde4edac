-- A node's vote: for one token, and one fence that the client proposes to all nodes.
--
-- KEYS: BORN, the main key
-- ARGV: 1 run_id, 2 token, 3 fence, 4 ttl (ms), 5 how far a fence may be from this clock (µs), 6 for how long a node that
--       forgot has no vote (ms), 7 by how much a fence outlives its lease (ms), 8 `!` if it is to outlive its client,
--       9 the channel of one who waits, or nothing; 10 since when it does (a fence), 11 how long that is remembered (ms)
-- Reply: time age yes | busy value left(ms) last | fence last | clock last | young last | foreign
-- Guards: only a free name, or this token's; only above every fence before (B2); same token and same fence: the same vote again,
--         re-armed, and any other fence of this token replaced (B3); no vote from a node that may have forgotten one (B6).

local key, token, number, ttl_ms = KEYS[2], ARGV[2], tonumber(ARGV[3], 16), tonumber(ARGV[4])
local age, last, value = age_ms(), last_of(key), held(key)
if value == false then
  return { NOW, age, 'foreign' }
end
local fence, rest = own(value, token)
if value and not fence then
  if ARGV[9] ~= '' then
    local line = '{' .. key .. '}:next'
    redis.call('ZADD', line, 'NX', string.format('%.0f', tonumber(ARGV[10], 16)), token .. '\n' .. ARGV[9])
    redis.call('PEXPIRE', line, ARGV[11])
  end
  return { NOW, age, 'busy', value, redis.call('PTTL', key), hex(last) }
elseif age < tonumber(ARGV[6]) then
  return { NOW, age, 'young', hex(last) }
elseif fence == number then
  extend(key, ttl_ms)
elseif math.abs(number - NOW) > tonumber(ARGV[5]) then
  return { NOW, age, 'clock', hex(last) }
elseif last < number then
  redis.call('SET', key, token .. '#' .. hex(number) .. ARGV[8], 'PX', ttl_ms)
else
  return { NOW, age, 'fence', hex(last) }
end
raise(key, last, number, ttl_ms + tonumber(ARGV[7]))
return { NOW, age, 'yes' }
