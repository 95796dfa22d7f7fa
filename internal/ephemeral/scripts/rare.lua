-- Functions that most calls have no use for. Making them takes longer than a call to Redis, so that is done when one is
-- needed.
local functions
function seldom()
  if functions then return functions end

  -- dropLeased takes from a group what is below a sequence, and notes it.
  local function dropLeased(R, name, below, owed)
    local id = R.inc .. ':' .. name
    for _, run in ipairs(call('ZRANGEBYSCORE', K .. 'e:' .. id, '-inf', '(' .. int(below))) do
      local first, last, salt, times = parse(run)
      for seq = first, math.min(last, below - 1) do owed[seq] = true end
      if last >= below then
        grant(R, name, below, last, salt, times, call('ZSCORE', K .. 'l', R.inc .. ':' .. run .. ':' .. name))
      end
      revoke(R, name, run)
    end
    for _, member in ipairs(call('ZRANGEBYSCORE', K .. 'b:' .. id, '-inf', '(' .. int(below))) do
      owed[sequence(string.match(member, '%d+'))] = true
      call('ZREM', K .. 'b:' .. id, member)
    end
  end

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
      dropLeased(R, name, below, owed)
    end
    local n = R.d - math.max(slowest, gone)
    if #names == 0 then n = R.d - gone end
    for seq in pairs(owed) do
      if slowest == R.d or seq <= reached then n = n + 1 end
    end
    drops[reason] = drops[reason] + n
    R.passed = true -- what comes next may have waited only for these
  end

  -- endRun gives back a run whose time is up.
  local function endRun(member)
    local inc, run, group = string.match(member, '^(%x+):(%d+:%d+:%d+:%d+):(.*)$')
    local R = ring(inc)
    if not R then
      call('ZREM', K .. 'l', member)
      return
    end
    revoke(R, group, run)
    local first, last, salt, times = parse(run)
    for seq = first, last do giveBack(R, group, int(seq) .. salt, times) end
  end

  -- forget removes what is kept of a group in a ring.
  local function forget(R, group)
    local id = R.inc .. ':' .. group
    for _, run in ipairs(call('ZRANGE', K .. 'e:' .. id, 0, -1)) do call('ZREM', K .. 'l', R.inc .. ':' .. run .. ':' .. group) end
    call('DEL', K .. 'b:' .. id, K .. 'e:' .. id)
  end

  -- destroy removes the queue with all that belongs to it.
  local function destroy()
    for _, inc in ipairs(call('HVALS', K .. 'p')) do
      for _, name in ipairs(groups()) do call('DEL', K .. 'b:' .. inc .. ':' .. name, K .. 'e:' .. inc .. ':' .. name) end
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

  functions = {drop = drop, forget = forget, destroy = destroy, settle = settle}
  return functions
end

