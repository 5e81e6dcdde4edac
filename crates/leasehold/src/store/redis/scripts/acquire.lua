-- Takes a share of some names, or a place in their lines; asked again, shows that one still waits (A3, A5, A6, A8, A9).
--
-- KEYS: LAST, the main key of each name
-- ARGV: 1 token, 2 ttl (ms), 3 not after (server's µs), 4 lowest fence (above every fence this client has seen), 5 terms,
--       6 channel (empty: nobody listens)
-- Terms are, by lines: `plain` for one name, to be had alone, with one fence and not detached, `share` for such a claim beside
-- others, or else `other`; waits (0 or 1),
-- fences, share, shows itself within (ms), detached (0 or 1).
-- Reply: fence (granted, plain) | granted fence fences | busy value left(ms) waiters | queued last look(ms) | `q` and last | late now(µs) | again 1 (some who are gone are still in the way) | foreign key type | limit
-- Guards: one holder alone, or several together; first come, first served; no claim without an end.

local function acquire(keys, token, ttl, not_after, lowest, terms, channel)
  local waits, n, share, show, detached = string.match(terms, '^%l+\n(%d)\n(%d+)\n([^\n]*)\n(%d+)\n(%d)$')
  waits, n, show, detached = waits == '1', tonumber(n), tonumber(show), detached == '1'

  if NOW > not_after then
    return { 'late', integer(NOW) }
  end

  local function granted(it)
    return { 'granted', hex(it.fence), it.n }
  end

  -- Held already: the same fences, and at least another TTL.
  local held = own_all(keys, token)
  if held then
    for i, key in ipairs(keys) do
      rearm(key, held[i], ttl)
    end
    return done(granted(held[1]))
  end

  local function holder(key)
    local kind = type_of(key)
    if kind == 'string' then
      return shown(value_at(key)), redis.call('PTTL', key)
    elseif kind == 'zset' then
      purge(key)
      local found = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
      if found[1] then
        local it = member_of(found[1])
        return it and it.value or '?', left_of(found[2])
      end
    end
    return '', 0
  end

  local function busy()
    for _, key in ipairs(keys) do
      local value, left = holder(key)
      if value ~= '' then
        return { 'busy', value, left, redis.call('LLEN', line_of(keys[1])) }
      end
    end
    return { 'busy', '', 0, redis.call('LLEN', line_of(keys[1])) }
  end

  local broken = damaged(keys)
  if broken then
    return done(broken)
  end
  for _, key in ipairs(keys) do
    local _, why = fits(key, share)
    if why == 'foreign' then
      return done({ 'foreign', key, type_of(key) })
    end
  end

  local text = redis.call('HGET', wait_of(keys[1]), token)
  if not waits then
    if text then
      leave(keys, token)
    end
    -- Those who wait and are there go first; those who are gone go.
    local is_cut = admit(keys)
    local is_free = true
    for _, key in ipairs(keys) do
      local barges = string.sub(share, -1) == 'b'
      is_free = is_free and fits(key, share) and (barges or redis.call('EXISTS', line_of(key)) == 0)
    end
    if not is_free then
      return done(is_cut and { 'again', 1 } or busy())
    end
    local fence = take(n, lowest)
    if not fence then
      return done({ 'limit' })
    end
    for _, key in ipairs(keys) do
      hold(key, share, value_of(token, fence, n, detached, keys), ttl)
    end
    return done({ 'granted', hex(fence), n })
  end

  -- Into the line, or still in it. It has one arrival, the same in all its lines; whoever has lost its place in one has lost it in
  -- all: two who are each before the other somewhere would both wait for ever.
  local barges = string.sub(share, -1) == 'b'
  local arrival, stands, was_away, traces = nil, 0, 0, {}
  for _, key in ipairs(keys) do
    local its, is_trace = arrival_of(key, token)
    if its then
      stands = stands + 1
    else
      its = arrival_kept(key, token)
      was_away = was_away + (its and 1 or 0)
    end
    arrival = its
    traces[#traces + 1] = is_trace and key or nil
  end
  if stands < #keys then
    step_out(token, { share = share, keys = traces })
    local is_back = was_away == #keys
    arrival = is_back and arrival or take(1, lowest)
    if not arrival then
      return done({ 'limit' })
    end
    for _, key in ipairs(keys) do
      if is_back then
        step_back_in(key, token, arrival)
      else
        redis.call('RPUSH', line_of(key), token)
      end
      -- Not before: whoever is refused its place has it still.
      if was_away > 0 then
        redis.call('HDEL', away_of(key), token)
      end
    end
  end
  local fields = {
    share, n, detached and '1' or '0', #keys, integer(NOW_MS + show), ttl, channel, hex(arrival), table.concat(keys, '\n'),
  }
  local entry = table.concat(fields, '\n')
  for _, key in ipairs(keys) do
    if redis.call('HSET', wait_of(key), token, entry) == 1 and barges then
      count_barging(key, 1)
    end
    stretch(line_of(key), show * 2)
    stretch(wait_of(key), show * 2)
  end
  local is_cut = admit(keys, token)
  held = own_all(keys, token)
  if held then
    return done(granted(held[1]))
  end
  -- A barging waiter may stand behind more entries than one call looks at, and every call begins with the same ones.
  local mine = { share = share, keys = keys }
  if barges and may_enter(token, mine, {}) then
    local fence = take(n, lowest)
    if not fence then
      return done({ 'limit' })
    end
    step_out(token, mine)
    done()
    for _, key in ipairs(keys) do
      hold(key, share, value_of(token, fence, n, detached, keys), ttl)
    end
    return { 'granted', hex(fence), n }
  end

  -- When to look again, beside every third of a TTL: when the one ahead would have to have shown itself, or, for whoever is
  -- first, when a holder ends. One of another library will not tell us of its end.
  local look = is_cut and 1 or ttl
  for _, key in ipairs(keys) do
    -- Of those far behind there is no need to know how far.
    local place = redis.call('LPOS', line_of(key), token, 'MAXLEN', 64)
    if place and place > 0 then
      local ahead = redis.call('LINDEX', line_of(key), place - 1)
      local its = ahead and waiter_of(key, ahead)
      if its then
        look = math.min(look, its.shows_until - NOW_MS)
      end
    end
    if place == 0 or barges then
      local value, left = holder(key)
      if value ~= '' then
        if left < 0 then
          -- Without an end: somebody's, until that one takes it away.
          left = 100
        elseif not parsed(value) then
          left = math.min(left, 100)
        end
        look = math.min(look, left)
      end
    end
    -- Whoever is told of it watches the end of the moment in which ours keep off.
    local off = redis.call('PTTL', yield_of(key))
    if off >= 0 then
      -- There to the end of its last millisecond.
      look = math.min(look, off + 1)
    end
  end
  return done({ 'queued', hex(last_given() or 0), math.max(look, 1) })
end
