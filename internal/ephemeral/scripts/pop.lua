-- Delivers to several callers of one kind, in their order. ARGV: 15 group, 16 partition (empty: all), 17 bytes for each,
-- 18 lease or commit, 19 whether a caller that gets nothing is going to wait, 20 how many messages the first one would
-- rather wait for (0: any), then how many messages each of them wants.
-- Answers: ms until something may become due by itself (-1: not known), how many are there if that was not enough,
-- then for each caller how many runs it gets and those: partition, incarnation, first sequence, salt, deliveries, how many
-- messages, the payloads.
freely()
if open(true) == nil then return answer('redeclare') end
settle()

local group, pinned = ARGV[15], ARGV[16] ~= ''
local want, budget, runs = 0, 0, 0 -- of the caller we are at: messages and bytes left, runs given
local leased, enough = ARGV[18] == 'lease', tonumber(ARGV[20])
local deadline, candidates = now + M.ls * 1000, K .. 'w:' .. group

if call('ZADD', K .. 'g', int(now), group) == 1 then
  known = nil
  for _, part in ipairs(call('HKEYS', K .. 'p')) do call('ZADD', candidates, 0, part) end
end

local out = answer('ok')
out[5], out[6] = -1, 0

-- cursorOf tells how far the group is in a ring: the sequence and how many messages that is. A group that is new to a
-- ring begins with the oldest message there is.
local function cursorOf(R)
  local v = call('HMGET', K .. 'r:' .. R.inc, 'c:' .. group, 'k:' .. group)
  if not v[1] then return 0, R.d, true end
  return tonumber(v[1]), tonumber(v[2]), false
end

local function available(R)
  local _, passed = cursorOf(R)
  return R.o - math.max(passed, R.d) + call('ZCARD', K .. 'b:' .. R.inc .. ':' .. group)
end

local function more() return want > 0 and budget > 0 end

-- give hands out neighbours: payloads from one place to another of a list.
local function give(R, first, salt, times, payloads, from, to)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3], out[n + 4], out[n + 5], out[n + 6] = R.part, R.inc, first, salt, times, to - from + 1
  n = n + 6 - from + 1
  for i = from, to do out[n + i] = payloads[i] end
  runs = runs + 1
end

-- again delivers what came back, in its old order.
local function again(R)
  local id = R.inc .. ':' .. group
  for _, member in ipairs(call('ZRANGE', K .. 'b:' .. id, 0, want - 1)) do
    if not more() then return end
    local token, times = string.match(member, '(%d+):(%d+)')
    local seq, salt = sequence(token), saltOf(token)
    local S = holding(R, seq)
    local i = seq - S.first + 3
    call('ZREM', K .. 'b:' .. id, member)
    if leased then grant(R, group, seq, seq, salt, times + 1, deadline) else R.passed = true end
    give(R, seq, salt, times + 1, S.payloads, i, i)
    want, budget = want - 1, budget - #S.payloads[i]
  end
end

-- upcoming reads segments from the one on that holds what the group has not seen.
local function upcoming(R, at, passed)
  local entries = call('XRANGE', K .. 's:' .. R.inc, int(at + 1), '+', 'COUNT', math.min(math.ceil(want / 8), 100))
  local next = entries[1] and segment(entries[1])
  if next and next.ord == passed + 1 then return entries end
  -- The group stands within a segment.
  return call('XREVRANGE', K .. 's:' .. R.inc, int(math.max(at + 1, R.h)), '-', 'COUNT', 1)
end

-- fresh delivers what the group has not seen, and says whether that is all of it.
local function fresh(R)
  local at, passed, new = cursorOf(R)
  passed = math.max(passed, R.d)
  local moved, before, first, salt = new, -1, 0, nil -- first and salt: of the run that is under way
  while more() and passed < R.o and passed > before do
    before = passed
    for _, e in ipairs(upcoming(R, at, passed)) do
      if not more() then break end
      local S = segment(e)
      local from = passed - S.ord + 4 -- in the list of payloads
      local to = from - 1
      while to < S.n + 2 and more() do
        to = to + 1
        want, budget = want - 1, budget - #S.payloads[to]
      end
      local start = S.first + from - 3
      if leased and (salt ~= S.salt or start ~= at + 1) then
        if salt then grant(R, group, first, at, salt, 1, deadline) end
        first, salt = start, S.salt
      end
      give(R, start, S.salt, 1, S.payloads, from, to)
      at, passed, moved = S.first + to - 3, S.ord + to - 3, true
    end
  end
  if salt then grant(R, group, first, at, salt, 1, deadline) end
  if moved then call('HSET', K .. 'r:' .. R.inc, 'c:' .. group, int(at), 'k:' .. group, int(passed)) end
  if not leased and moved then R.passed = true end
  return passed >= R.o
end

-- each goes through the partitions that may have something, by name, until visit says that it is enough.
local function each(visit)
  if pinned then
    visit(ringOf(ARGV[16], true))
    return
  end
  local from = 0
  while true do
    local parts = call('ZRANGE', candidates, from, from + 31)
    for _, part in ipairs(parts) do
      local R = ringOf(part, false)
      local stays, stop = R ~= nil, false
      if R then stays, stop = visit(R) end
      if stays then from = from + 1 else call('ZREM', candidates, part) end
      if stop then return end
    end
    if #parts < 32 then return end
  end
end

local take = true
if enough > 0 then
  local there = 0
  each(function(R)
    local n = available(R)
    there = there + n
    return n > 0, there >= enough
  end)
  take = there >= enough
  out[6] = there
end
local found, hungry = false, false
for i = 21, #ARGV do
  local head = #out + 1
  out[head], want, budget, runs = 0, tonumber(ARGV[i]), tonumber(ARGV[17]), 0
  if take and not hungry then
    each(function(R)
      again(R)
      local drained = fresh(R) and call('EXISTS', K .. 'b:' .. R.inc .. ':' .. group) == 0
      return not drained, not more()
    end)
  end
  out[head] = runs
  if out[head] > 0 then found = true else hungry = true end
end

if hungry and ARGV[19] == '1' then M.wt = '1' end
if found and leased then soon(deadline) end
local head = call('ZRANGE', K .. 'l', 0, 0, 'WITHSCORES')
if head[2] then out[5] = math.max(math.floor(head[2] - now), 0) end
close(true)
out[2], out[3], out[4] = drops.db, drops.dt, drops.dr
return out
