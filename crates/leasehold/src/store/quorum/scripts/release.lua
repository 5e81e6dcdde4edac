-- Gives up what a token holds, or may yet be given by a request that is under way.
--
-- KEYS: MEMORY, the main key
-- ARGV: 5 token, 6 the highest fence that was proposed with it (empty where that is not known), 7 what no fence is to be at or
--       below from now on: that one, or one more where a repair may be under way; 8 its channel if it waited and does not
--       any more, or nothing
-- Reply: time age, then 1 (released) | 0 (it held nothing)
-- Guards: only the token's own vote is touched, and none for a later fence; no request of before is accepted after this (B5). What
--         this node could not accept by its clock is not raised to: one who asks for a fence far ahead would shut others out.

local key, token = KEYS[2], ARGV[5]
local upto, barred = tonumber(ARGV[6], 16), tonumber(ARGV[7], 16)
local age, last = remembered(key)
local value = held(key)
local fence = own(value, token)
local released = 0
if fence and (not upto or fence <= upto) then
  redis.call('DEL', key)
  value, released = nil, 1
end
if upto and upto <= NOW + S then
  raise(key, last, barred)
  last = math.max(last, barred)
end
if ARGV[8] ~= '' then
  local line = '{' .. key .. '}:next'
  local removed = redis.pcall('ZREM', line, token .. '\n' .. ARGV[8])
  if type(removed) == 'table' and not is_wrong_type(removed, line) then
    redis.call('ZREM', line, token .. '\n' .. ARGV[8])
  end
end
if value == nil then
  wake(key, last)
end
return { NOW, age, released }
