-- Gives up what a token holds, or may yet be given by a request that is under way.
--
-- KEYS: BORN, the main key
-- ARGV: 1 run_id, 2 by how much a fence outlives its lease (ms), 3 token, 4 the highest fence that was proposed with it (empty
--       where that is not known), 5 its channel if it does not wait any more, or nothing
-- Reply: time age, then 1 (released) | 0 (it held nothing)
-- Guards: only the token's own vote is touched, and none for a later fence; no request of before is accepted after this (B5).

local key, token = KEYS[2], ARGV[3]
local upto = tonumber(ARGV[4], 16)
local age, last, value = age_ms(), last_of(key), held(key)
local fence = own(value, token)
local released = 0
if fence and (not upto or fence <= upto) then
  redis.call('DEL', key)
  value, released = nil, 1
end
if upto then
  raise(key, last, upto + 1, tonumber(ARGV[2]))
  last = math.max(last, upto + 1)
end
if ARGV[5] ~= '' then
  redis.call('ZREM', '{' .. key .. '}:next', token .. '\n' .. ARGV[5])
end
if value == nil then
  wake(key, last)
end
return { NOW, age, released }
