-- Renewals of one client, each of one name.
--
-- KEYS: MEMORY, the main key of each
-- ARGV: from 5 on for each: token, fence (empty for one who knows the token only), ttl (ms)
-- Reply: time age, then for each: its fence, with `!` behind it if it outlives its client | 0 nothing is there, and nothing
--        newer was | 1 nothing is there, and something newer was | 2 somebody else's | 3 no lock
-- Guards: nothing is made again that has gone; no end is ever set back.

local replies = { NOW, (remembered('')) }
for i = 2, #KEYS do
  local key, token, wanted, ttl_ms = KEYS[i], ARGV[3 * i - 1], ARGV[3 * i], tonumber(ARGV[3 * i + 1])
  local value = held(key)
  local fence, rest = own(value, token)
  local reply
  if fence and (wanted == '' or hex(fence) == wanted) then
    extend(key, ttl_ms)
    reply = hex(fence) .. rest
  elseif value then
    reply = 2
  elseif value == false then
    reply = 3
  else
    local _, last = remembered(key)
    reply = (wanted ~= '' and last <= tonumber(wanted, 16)) and 0 or 1
  end
  replies[i + 1] = reply
end
return replies
