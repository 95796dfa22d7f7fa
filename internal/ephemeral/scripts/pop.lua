-- Delivers to several callers of one kind, in their order. ARGV: 15 group, 16 partition (empty: all), 17 bytes for each,
-- 18 lease or commit, 19 whether a caller that gets nothing is going to wait, 20 how many messages the first one would
-- rather wait for (0: any), then how many messages each of them wants.
-- Answers: ms until something may become due by itself (-1: not known), how many are there if that was not enough,
-- then for each caller how many it gets and those: partition, incarnation, token, deliveries, payload.
freely()
if open(true) == nil then return answer('redeclare') end
settle()

local group, pinned, want, budget = ARGV[15], ARGV[16] ~= '', 0, 0
local leased, enough = ARGV[18] == 'lease', tonumber(ARGV[20])
local deadline, candidates = now + M.ls * 1000, K .. 'w:' .. group

if call('ZADD', K .. 'g', now, group) == 1 then
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

local function give(R, token, times, payload)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3], out[n + 4], out[n + 5] = R.part, R.inc, token, times, payload
  want, budget = want - 1, budget - #payload
end

local function more() return want > 0 and budget > 0 end

-- again delivers what came back, in its old order.
local function again(R)
  local id = R.inc .. ':' .. group
  for _, token in ipairs(call('ZRANGE', K .. 'b:' .. id, 0, want - 1)) do
    if not more() then return end
    local e = call('XRANGE', K .. 's:' .. R.inc, int(sequence(token)), int(sequence(token)))[1]
    local times = call('HINCRBY', K .. 'a:' .. id, token, 1)
    call('ZREM', K .. 'b:' .. id, token)
    if leased then
      call('ZADD', K .. 'l', deadline, R.inc .. ':' .. token .. ':' .. group)
    else
      call('ZREM', K .. 'u:' .. id, token)
      call('HDEL', K .. 'a:' .. id, token)
      R.passed = true
    end
    give(R, token, times, e[2][2])
  end
end

-- fresh delivers what the group has not seen.
local function fresh(R)
  local at, passed, new = cursorOf(R)
  if new then call('HSET', K .. 'r:' .. R.inc, 'c:' .. group, 0, 'k:' .. group, int(R.d)) end
  while more() and passed < R.o do
    local entries = call('XRANGE', K .. 's:' .. R.inc, int(at + 1), '+', 'COUNT', math.min(want, 200))
    if #entries == 0 then break end
    local unsettled, leases = {}, {}
    for _, e in ipairs(entries) do
      if not more() then break end
      local seq, ord = string.match(e[1], '(%d+)-(%d+)')
      at, passed = tonumber(seq), tonumber(ord)
      local token = seq .. string.sub(e[2][1], -SALT)
      if leased then
        local i = #leases
        unsettled[i + 1], unsettled[i + 2] = seq, token
        leases[i + 1], leases[i + 2] = deadline, R.inc .. ':' .. token .. ':' .. group
      end
      give(R, token, 1, e[2][2])
    end
    if leased then
      call('ZADD', K .. 'u:' .. R.inc .. ':' .. group, unpack(unsettled))
      call('ZADD', K .. 'l', unpack(leases))
    end
    call('HSET', K .. 'r:' .. R.inc, 'c:' .. group, int(at), 'k:' .. group, int(passed))
  end
  if not leased then R.passed = true end
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
  out[head], want, budget = 0, tonumber(ARGV[i]), tonumber(ARGV[17])
  if take and not hungry then
    each(function(R)
      again(R)
      local drained = fresh(R) and call('EXISTS', K .. 'b:' .. R.inc .. ':' .. group) == 0
      return not drained, not more()
    end)
  end
  out[head] = (#out - head) / 5
  if out[head] > 0 then found = true else hungry = true end
end

if hungry and ARGV[19] == '1' then M.wt = 1 end
if found and leased then soon(deadline) end
local head = call('ZRANGE', K .. 'l', 0, 0, 'WITHSCORES')
if head[2] then out[5] = math.max(math.floor(head[2] - now), 0) end
close(true)
out[2], out[3], out[4] = drops.db, drops.dt, drops.dr
return out
