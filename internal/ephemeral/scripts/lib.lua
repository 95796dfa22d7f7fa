-- What every script of a queue begins with.
--
-- KEYS: 1 the queue's meta hash, 2 the registry of its bucket, 3 the usage of its bucket. Every other key of the queue
-- starts as the first one does, so that one hash tag holds them all:
--   m          meta: declaration, limits in force, totals, when to look again
--   p          partition -> incarnation of its ring
--   r:<inc>    ring: p partition, q last sequence, o messages ever, d messages gone, y bytes ever, f bytes gone,
--              h sequence of the oldest message (0: none), c:<group> cursor, k:<group> how many were before the cursor
--   s:<inc>    stream of segments, each up to 16 messages of one push: id <first sequence>-<first ordinal>, then bytes
--              ever before, <salt>:<how many>, the payloads, and an empty one to make it even
--   h          rings that hold something, by the sequence of their oldest message
--   g          groups, by the time of their last pop
--   w:<group>  partitions that may have something for a group
--   u:<inc>:<group>  tokens of what is delivered and not settled, by sequence
--   b:<inc>:<group>  of those, the ones to be delivered again
--   a:<inc>:<group>  token -> label, for those that came back: deliveries, and how many of them did not count
--   e:<inc>:<group>  runs <first>:<last>:<label> that were leased together, by the first sequence
--   l          the same runs of all rings, <inc>:<run>:<group>, by the time their lease ends
--   k          group -> messages that were dropped before it got them
--   x          version of the last deletion, for a while
--
-- A sequence is the time of the push in 1/1024 ms, or one more than the one before if that is later. So it tells the
-- age of a message, and a replica that takes over without the last messages goes on behind them. Clocks differ, though:
-- the token of a message is its sequence with six random digits, so that a replica which is behind in time as well does
-- not hand out again what somebody still holds.
--
-- ARGV: 1 queue in the registry, 2 tenant, 3 version of the declaration (0: none), 4 to 11 limits, 12 how long an
-- implicit queue may be idle, 13 channel for wake-ups, 14 incarnation of a ring that is to be made.
local call = redis.call
local K = string.sub(KEYS[1], 1, -2)
local QUEUE, TENANT, VERSION = ARGV[1], ARGV[2], tonumber(ARGV[3])
local LIMITS = {'mb', 'ml', 'po', 'tt', 'ls', 'rl', 'wm', 'wc'}
local TOTALS = {'n', 'b', 'wt', 'du', 'tc'}

local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local SALT = 6 -- digits

local function int(x) return string.format('%.0f', x) end

local M = {}                 -- the meta hash
local before                 -- bytes the queue held when we began
local stored = true          -- the limits in force are those in the hash
local drops = {db = 0, dt = 0, dr = 0}
local rings = {}             -- by incarnation
local known                  -- names of the groups
local ready = false          -- something can be delivered that could not before

-- buried tells whether a declaration is older than the deletion of the queue.
local function buried(version)
  local x = version > 0 and call('GET', K .. 'x')
  return x and tonumber(x) >= version
end

local function adopt()
  for i, f in ipairs(LIMITS) do M[f] = tonumber(ARGV[3 + i]) end
  M.dv, stored = VERSION, false
end

-- open reads the queue and says whether it is there. Of two declarations the later one counts, the caller's or the
-- one that is stored. With create set, a missing queue is made, unless the caller believes in a declaration that is
-- gone: then the answer is nil.
local function open(create)
  local v = call('HMGET', KEYS[1], 'dv', 'mb', 'ml', 'po', 'tt', 'ls', 'rl', 'wm', 'wc', 'n', 'b', 'wt', 'du', 'tc')
  if v[1] then
    M.dv = tonumber(v[1])
    for i, f in ipairs(LIMITS) do M[f] = tonumber(v[1 + i]) end
    for i, f in ipairs(TOTALS) do M[f] = tonumber(v[9 + i]) end
    if VERSION > M.dv and not buried(VERSION) then adopt() end
    before = M.b
    return true
  end
  if not create then return false end
  if buried(VERSION) then return nil end
  adopt()
  M.n, M.b, M.wt, M.du, M.tc = 0, 0, 0, 0, now
  before = nil
  return true
end

local function groups()
  known = known or call('ZRANGE', K .. 'g', 0, -1)
  return known
end

local function ring(inc)
  local R = rings[inc]
  if R then return R end
  local v = call('HMGET', K .. 'r:' .. inc, 'p', 'q', 'o', 'd', 'y', 'f', 'h')
  if not v[1] then return nil end
  R = {inc = inc, part = v[1], q = tonumber(v[2]), o = tonumber(v[3]), d = tonumber(v[4]),
       y = tonumber(v[5]), f = tonumber(v[6]), h = tonumber(v[7])}
  rings[inc] = R
  return R
end

local function ringOf(part, create)
  local inc = call('HGET', K .. 'p', part)
  if inc then return ring(inc) end
  if not create then return nil end
  local R = {inc = ARGV[14], part = part, q = now * 1024, o = 0, d = 0, y = 0, f = 0, h = 0, dirty = true}
  call('HSET', K .. 'p', part, R.inc)
  rings[R.inc] = R
  return R
end

-- segment takes a stream's entry apart: the message i of it is payloads[i + 2], its sequence first + i - 1.
local function segment(e)
  local first, ord = string.match(e[1], '(%d+)-(%d+)')
  local salt, n = string.match(e[2][2], '(%d+):(%d+)')
  return {first = tonumber(first), ord = tonumber(ord), bytes = tonumber(e[2][1]), salt = salt, n = tonumber(n),
          payloads = e[2]}
end

-- holding returns the segment that a sequence is in, or that it would be in.
local function holding(R, seq)
  local e = call('XREVRANGE', K .. 's:' .. R.inc, int(seq), '-', 'COUNT', 1)[1]
  return e and segment(e)
end

-- cut removes what is below a sequence.
local function cut(R, below)
  local messages, bytes = R.o - R.d, R.y - R.f
  local stream = K .. 's:' .. R.inc
  if below > R.q then
    call('DEL', stream)
    call('ZREM', K .. 'h', R.inc)
    R.d, R.f, R.h = R.o, R.y, 0
  else
    local S = holding(R, below)
    if not S or below >= S.first + S.n then
      S = segment(call('XRANGE', stream, int(below), '+', 'COUNT', 1)[1])
      below = S.first
    end
    local gone = below - S.first
    R.h, R.d, R.f = below, S.ord + gone - 1, S.bytes
    for i = 1, gone do R.f = R.f + #S.payloads[i + 2] end
    call('XTRIM', stream, 'MINID', int(S.first))
    call('ZADD', K .. 'h', int(below), R.inc)
  end
  M.n = M.n - messages + (R.o - R.d)
  M.b = M.b - bytes + (R.y - R.f)
  R.dirty = true
end

-- cursors reads a field of every group, in pieces that fit the stack.
local function cursors(R, field)
  local names, out = groups(), {}
  for from = 1, #names, 1000 do
    local fields = {}
    for i = from, math.min(from + 999, #names) do fields[#fields + 1] = field .. names[i] end
    local v = call('HMGET', K .. 'r:' .. R.inc, unpack(fields))
    for i = 1, #fields do out[from + i - 1] = v[i] end
  end
  return out
end

local function sequence(token) return tonumber(string.sub(token, 1, -1 - SALT)) end

-- trim removes what every group has settled.
local function trim(R)
  local names = groups()
  if R.o == R.d or #names == 0 then return end
  local at, low = cursors(R, 'c:'), R.q + 1
  for i, name in ipairs(names) do
    if not at[i] then return end
    local owed = at[i] + 1
    local first = call('ZRANGE', K .. 'u:' .. R.inc .. ':' .. name, 0, 0)[1]
    if first then owed = math.min(owed, sequence(first)) end
    low = math.min(low, owed)
    if low <= R.h then return end
  end
  cut(R, low)
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
      call('HSET', K .. 'r:' .. R.inc, 'c:' .. name, int(below - 1), 'k:' .. name, int(R.d))
      call('HINCRBY', K .. 'k', name, int(R.d - k))
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

-- labelOf tells how often a message was delivered to a group, and how many deliveries were taken back. While a message is
-- leased, its label is that of the run; so a run that is over cannot end a later lease.
local function labelOf(id, token)
  local label = call('HGET', K .. 'a:' .. id, token) or '1:0'
  local times, undone = string.match(label, '(%d+):(%d+)')
  return label, tonumber(times), tonumber(undone)
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
  call('ZADD', K .. 'b:' .. id, int(sequence(token)), token)
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

-- tidy forgets the runs of a group in which nothing is left.
local function tidy(R, group)
  local id = R.inc .. ':' .. group
  local low = call('ZRANGE', K .. 'u:' .. id, 0, 0)[1]
  local below = low and '(' .. int(sequence(low)) or '+inf'
  for _, run in ipairs(call('ZRANGEBYSCORE', K .. 'e:' .. id, '-inf', below)) do
    if not low or tonumber(string.match(run, ':(%d+):')) < sequence(low) then
      call('ZREM', K .. 'e:' .. id, run)
      call('ZREM', K .. 'l', R.inc .. ':' .. run .. ':' .. group)
    end
  end
end

-- settle does what has become due: leases that ended, messages that are too old. It leaves the rest to the next call
-- when there is much, and says so.
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

-- soon makes the sweep look no later than at an instant.
local function soon(at)
  if M.du == 0 or at < M.du then M.du, M.moved = at, true end
end

-- count changes a number of the bucket. One that is zero takes no room.
local function count(field, n)
  if call('HINCRBY', KEYS[3], field, int(n)) == 0 then call('HDEL', KEYS[3], field) end
end

-- close writes what has changed and wakes those who wait.
local function close(touched)
  for _, R in pairs(rings) do
    if R.passed then trim(R) end
    if R.dirty then
      call('HSET', K .. 'r:' .. R.inc, 'p', R.part, 'q', int(R.q), 'o', int(R.o), 'd', int(R.d), 'y', int(R.y),
        'f', int(R.f), 'h', int(R.h))
    end
  end
  if not before then
    count(TENANT .. ':n', 1)
    before = 0
  end
  -- A queue that nobody declared is removed some time after it became empty.
  if M.n == 0 and M.dv == 0 or M.du == 0 then soon(now + tonumber(ARGV[12])) end
  if M.b ~= before then count(TENANT, M.b - before) end
  if M.moved then call('ZADD', KEYS[2], int(M.du), QUEUE) end
  for reason, n in pairs(drops) do
    if n > 0 then call('HINCRBY', KEYS[1], reason, int(n)) end
  end
  if ready and M.wt == 1 then
    call('PUBLISH', ARGV[13], QUEUE)
    M.wt = 0
  end
  if touched then M.tc = now end
  if not stored then
    call('HSET', KEYS[1], 'dv', int(M.dv), 'mb', int(M.mb), 'ml', int(M.ml), 'po', int(M.po), 'tt', int(M.tt),
      'ls', int(M.ls), 'rl', int(M.rl), 'wm', int(M.wm), 'wc', int(M.wc))
  end
  call('HSET', KEYS[1], 'n', int(M.n), 'b', int(M.b), 'wt', M.wt, 'du', int(M.du), 'tc', int(M.tc))
end

-- answer begins with how it went and what was dropped on the way.
local function answer(word) return {word, drops.db, drops.dt, drops.dr} end

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

-- join puts letters together, in pieces that fit the stack.
local function join(letters)
  local pieces = {}
  for from = 1, #letters, 100 do
    pieces[#pieces + 1] = table.concat(letters, '', from, math.min(from + 99, #letters))
  end
  return table.concat(pieces)
end

-- freely lets a script run that a server without memory left would refuse: the ones that give memory back. Nothing is
-- refused after a first write, and this one needs no memory.
local function freely() call('DEL', K .. 'z') end
