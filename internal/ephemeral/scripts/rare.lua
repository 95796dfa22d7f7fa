-- Functions that most calls have no use for. Making them takes longer than a call to Redis, so that is done when one is
-- needed.
local functions
function seldom()
  if functions then return functions end

  -- drop removes what is below a sequence though somebody is owed it, and counts that.
  local function drop(R, below, reason)
    local gone, names = R.d, groups()
    local at, passed = cursors(R, 'c:'), cursors(R, 'k:')
    cut(R, below)
    local slowest, reached, owed = R.d, 0, {}
    for i, name in ipairs(names) do
      local k = math.max(tonumber(passed[i] or gone), gone)
      if k < slowest then slowest, reached = k, tonumber(at[i] or 0) end
      if k < R.d then
        call('HSET', K .. 'r:' .. R.inc, 'c:' .. name, below - 1, 'k:' .. name, R.d)
        call('HINCRBY', K .. 'k', name, R.d - k)
      end
      local id = R.inc .. ':' .. name
      for _, token in ipairs(call('ZRANGEBYSCORE', K .. 'u:' .. id, '-inf', '(' .. int(below))) do
        owed[token] = true
        call('ZREM', K .. 'u:' .. id, token)
        call('ZREM', K .. 'b:' .. id, token)
        call('HDEL', K .. 'a:' .. id, token)
      end
    end
    local n = R.d - math.max(slowest, gone)
    if #names == 0 then n = R.d - gone end
    for token in pairs(owed) do
      if slowest == R.d or sequence(token) <= reached then n = n + 1 end
    end
    drops[reason] = drops[reason] + n
    R.passed = true -- what comes next may have waited only for these
  end

  -- giveBack ends a lease: the message is delivered again or, when it was often enough, given up for the group.
  local function giveBack(R, token, group)
    local id = R.inc .. ':' .. group
    local label, times = labelOf(id, token)
    if times >= M.rl then
      call('ZREM', K .. 'u:' .. id, token)
      call('HDEL', K .. 'a:' .. id, token)
      drops.dr = drops.dr + 1
      R.passed = true
      return false
    end
    call('ZADD', K .. 'b:' .. id, sequence(token), token)
    call('HSET', K .. 'a:' .. id, token, label)
    call('ZADD', K .. 'w:' .. group, 0, R.part)
    ready = true
    return true
  end

  -- endRun gives back what is left of a run.
  local function endRun(member)
    local inc, first, last, label, group = string.match(member, '^(%x+):(%d+):(%d+):(%d+:%d+):(.*)$')
    local id = inc .. ':' .. group
    call('ZREM', K .. 'l', member)
    call('ZREM', K .. 'e:' .. id, first .. ':' .. last .. ':' .. label)
    local R = ring(inc)
    for _, token in ipairs(R and call('ZRANGEBYSCORE', K .. 'u:' .. id, first, last) or {}) do
      if labelOf(id, token) == label and not call('ZSCORE', K .. 'b:' .. id, token) then giveBack(R, token, group) end
    end
  end

  -- forget removes what is kept of a group in a ring.
  local function forget(R, group)
    local id = R.inc .. ':' .. group
    for _, run in ipairs(call('ZRANGE', K .. 'e:' .. id, 0, -1)) do call('ZREM', K .. 'l', R.inc .. ':' .. run .. ':' .. group) end
    call('DEL', K .. 'u:' .. id, K .. 'b:' .. id, K .. 'a:' .. id, K .. 'e:' .. id)
  end

  -- destroy removes the queue with all that belongs to it.
  local function destroy()
    for _, inc in ipairs(call('HVALS', K .. 'p')) do
      for _, name in ipairs(groups()) do
        local id = inc .. ':' .. name
        call('DEL', K .. 'u:' .. id, K .. 'b:' .. id, K .. 'a:' .. id, K .. 'e:' .. id)
      end
      call('DEL', K .. 'r:' .. inc, K .. 's:' .. inc)
    end
    for _, name in ipairs(groups()) do call('DEL', K .. 'w:' .. name) end
    call('DEL', KEYS[1], K .. 'p', K .. 'h', K .. 'g', K .. 'l', K .. 'k')
    call('ZREM', KEYS[2], QUEUE)
    count(TENANT .. ':n', -1)
    if before ~= 0 then count(TENANT, -before) end
  end

  local function settle()
    local ended = call('ZRANGEBYSCORE', K .. 'l', '-inf', now, 'LIMIT', 0, 1000)
    for _, member in ipairs(ended) do endRun(member) end
    local old = {}
    if M.tt > 0 then
      local below = (now - M.tt * 1000) * 1024
      old = call('ZRANGEBYSCORE', K .. 'h', '-inf', '(' .. int(below), 'LIMIT', 0, 100)
      for _, inc in ipairs(old) do drop(ring(inc), below, 'dt') end
    end
    for _, R in pairs(rings) do
      if R.passed then
        R.passed = nil
        trim(R)
      end
    end
    return #ended == 1000 or #old == 100
  end

  functions = {drop = drop, giveBack = giveBack, forget = forget, destroy = destroy, settle = settle}
  return functions
end

