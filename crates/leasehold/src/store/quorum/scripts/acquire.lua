-- A node's vote: for one token, and one fence that the client proposes to all nodes.
--
-- KEYS: MEMORY, the main key
-- ARGV: 5 token, 6 fence, 7 ttl (ms), 8 for how long a node that forgot has no vote (ms), 9 `!` if it is to outlive its client,
--       10 the channel of one who waits, or nothing; 11 since when it does (a fence), 12 how long that is remembered (ms)
-- Reply: time age yes | busy value left(ms) last | fence last | clock last | young last | foreign
-- Guards: only a free name, or this token's; only above every fence before, and near this clock (B2); same token and same fence: the
--         same vote again, re-armed, and any other fence of this token replaced (B3); no vote from a node that may have
--         forgotten one (B6).

local key, token, number, ttl_ms = KEYS[2], ARGV[5], tonumber(ARGV[6], 16), tonumber(ARGV[7])
local age, last = remembered(key)
local value = held(key)
if value == false then
  return { NOW, age, 'foreign' }
end
local fence, rest = own(value, token)
local is_near = math.abs(number - NOW) <= S
if value and not fence then
  if ARGV[10] ~= '' then
    local line = '{' .. key .. '}:next'
    local added = redis.pcall('ZADD', line, 'NX', decimal(tonumber(ARGV[11], 16)), token .. '\n' .. ARGV[10])
    if type(added) == 'table' and (is_wrong_type(added, line) or added.err) then
      redis.call('ZADD', line, 'NX', decimal(tonumber(ARGV[11], 16)), token .. '\n' .. ARGV[10])
    end
    redis.call('PEXPIRE', line, ARGV[12])
  end
  return { NOW, age, 'busy', shown(value), redis.call('PTTL', key), hex(last) }
elseif age < tonumber(ARGV[8]) then
  return { NOW, age, is_near and 'young' or 'clock', hex(last) }
elseif fence == number then
  extend(key, ttl_ms)
elseif not is_near then
  return { NOW, age, 'clock', hex(last) }
elseif last < number then
  redis.call('SET', key, token .. '#' .. hex(number) .. ARGV[9], 'PX', ttl_ms)
else
  return { NOW, age, 'fence', hex(last) }
end
raise(key, last, number)
forget()
return { NOW, age, 'yes' }
