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
--   e:<inc>:<group>  leased runs, by the first sequence: <first>:<last>:<salt>:<deliveries>, neighbours of one push that
--              were delivered together
--   l          the runs of all rings and groups, <inc>:<run>:<group>, by the time their lease ends
--   b:<inc>:<group>  <token>:<deliveries> of what is to be delivered again, by sequence
--   k          group -> messages that were dropped before it got them
--   x          version of the last deletion, for a while
--
-- A sequence is the time of the push in 1/1024 ms, or one more than the one before if that is later. So it tells the
-- age of a message, and a replica that takes over without the last messages goes on behind them. Clocks differ, though:
-- the token of a message is its sequence with six random digits, so that a replica which is behind in time as well does
-- not hand out again what somebody still holds.
--
-- ARGV: 1 queue in the registry, 2 tenant, 3 version of the declaration (0: none), 4 to 11 limits, 12 how long an
-- implicit queue may be idle, 13 channel for wake-ups, 14 what the incarnations of new rings begin with.
local call = redis.call
local K = string.sub(KEYS[1], 1, -2)
local QUEUE, TENANT, VERSION = ARGV[1], ARGV[2], tonumber(ARGV[3])
local LIMITS = {'mb', 'ml', 'po', 'tt', 'ls', 'rl', 'wm', 'wc'}

local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local SALT = 6 -- digits

-- int writes a number as an integer. Redis could do that by itself, at twice the cost and more.
local function int(x) return string.format('%d', x) end

local M = {}                 -- the meta hash
local before                 -- bytes the queue held when we began
local stored = true          -- the limits in force are those in the hash
local drops = {db = 0, dt = 0, dr = 0}
local rings = {}             -- by incarnation
local made = 0               -- rings made by this call
local known                  -- names of the groups
local ready = false          -- something can be delivered that could not before

-- buried tells whether a declaration is older than the deletion of the queue.
local function buried(version)
  local x = version > 0 and call('GET', K .. 'x')
  return x and tonumber(x) >= version
end

local function adopt()
  for i, f in ipairs(LIMITS) do M[f] = tonumber(ARGV[3 + i]) end
  M.dv = VERSION
end

-- open reads the queue and says whether it is there. Of two declarations the later one counts, the caller's or the one
-- that is stored. With create set, a missing queue is made, unless the caller believes in a declaration that is gone: then
-- the answer is nil.
local function open(create)
  local v = call('HMGET', KEYS[1], 'dv', 'n', 'b', 'wt', 'du', 'tc')
  adopt()
  if not v[1] then
    if not create then return false end
    if buried(VERSION) then return nil end
    M.n, M.b, M.wt, M.du, M.tc = 0, 0, '0', 0, now
    stored = false
    return true
  end
  M.dv, M.n, M.b, M.wt, M.du, M.tc = unpack(v)
  M.dv, M.n, M.b, M.du, M.tc = tonumber(M.dv), tonumber(M.n), tonumber(M.b), tonumber(M.du), tonumber(M.tc)
  before = M.b
  if VERSION > M.dv and not buried(VERSION) then
    M.dv, stored = VERSION, false
  elseif VERSION ~= M.dv then
    local limits = call('HMGET', KEYS[1], unpack(LIMITS))
    for i, f in ipairs(LIMITS) do M[f] = tonumber(limits[i]) end
  end
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
  made = made + 1
  local R = {inc = ARGV[14] .. string.format('%x', made), part = part, q = now * 1024, o = 0, d = 0, y = 0, f = 0, h = 0, new = true}
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
      S = segment(call('XRANGE', stream, below, '+', 'COUNT', 1)[1])
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
  R.cut = true
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

-- trim removes what every group has settled.
local function trim(R)
  local names = groups()
  if R.o == R.d or #names == 0 then return end
  local at, low = cursors(R, 'c:'), R.q + 1
  for i, name in ipairs(names) do
    if not at[i] then return end
    low = math.min(low, at[i] + 1)
    for _, kind in ipairs({'e:', 'b:'}) do
      local first = call('ZRANGE', K .. kind .. R.inc .. ':' .. name, 0, 0, 'WITHSCORES')[2]
      if first then low = math.min(low, tonumber(first)) end
    end
    if low <= R.h then return end
  end
  cut(R, low)
end

local seldom -- rare.lua

-- settle does what has become due: leases that ended, messages that are too old. It leaves the rest to the next call
-- when there is much, and says so.
local function settle()
  local ended = call('ZRANGE', K .. 'l', 0, 0, 'WITHSCORES')[2]
  local old = M.tt > 0 and call('ZRANGE', K .. 'h', 0, 0, 'WITHSCORES')[2]
  if ended and tonumber(ended) <= now or old and tonumber(old) < (now - M.tt * 1000) * 1024 then return seldom().settle() end
  return false
end

-- soon makes the sweep look no later than at an instant.
local function soon(at)
  if M.du == 0 or at < M.du then M.du, M.moved = at, true end
end

-- count changes a number of the bucket. One that is zero takes no room.
local function count(field, n)
  if call('HINCRBY', KEYS[3], field, n) == 0 then call('HDEL', KEYS[3], field) end
end

-- close writes what has changed and wakes those who wait.
local function close(touched)
  for _, R in pairs(rings) do
    if R.passed then trim(R) end
    local key = K .. 'r:' .. R.inc
    if R.new then call('HSET', key, 'p', R.part, 'd', R.d, 'f', R.f, 'h', int(R.h)) end
    if R.grown or R.new then call('HSET', key, 'q', int(R.q), 'o', int(R.o), 'y', int(R.y)) end
    if R.cut then call('HSET', key, 'd', int(R.d), 'f', int(R.f), 'h', int(R.h)) end
  end
  if not before then
    count(TENANT .. ':n', 1)
    before = 0
  end
  -- A queue that nobody declared is removed some time after it became empty.
  if M.n == 0 and M.dv == 0 or M.du == 0 then soon(now + tonumber(ARGV[12])) end
  if M.b ~= before then count(TENANT, M.b - before) end
  if M.moved then
    call('ZADD', KEYS[2], int(M.du), QUEUE)
    call('HSET', KEYS[1], 'du', int(M.du))
  end
  for reason, n in pairs(drops) do
    if n > 0 then call('HINCRBY', KEYS[1], reason, n) end
  end
  if ready and M.wt == '1' then
    call('PUBLISH', ARGV[13], QUEUE)
    M.wt = '0'
  end
  if touched then M.tc = now end
  if not stored then
    call('HSET', KEYS[1], 'dv', M.dv, 'mb', M.mb, 'ml', M.ml, 'po', M.po, 'tt', M.tt,
      'ls', M.ls, 'rl', M.rl, 'wm', M.wm, 'wc', M.wc)
  end
  call('HSET', KEYS[1], 'n', int(M.n), 'b', int(M.b), 'wt', M.wt, 'tc', int(M.tc))
end

-- answer begins with how it went and what was dropped on the way.
local function answer(word) return {word, drops.db, drops.dt, drops.dr} end

-- freely lets a script run that a server without memory left would refuse: the ones that give memory back. Nothing is
-- refused after a first write, and this one needs no memory.
local function freely() call('DEL', K .. 'z') end
