-- Settles messages for several callers. ARGV: 15 how many callers, then for each: group, how many ids, and for each id:
-- partition, incarnation, token, verdict (1: settled, 0: back, 2: back without counting the delivery). Answers one letter
-- for each id: a acked, r redelivered, s stale, u unknown.
freely()
local exists = open(false)
local behind = exists and settle()
local done = {} -- tokens that are settled, by incarnation and group
local incs = {} -- by partition

local function incarnationOf(part)
  if incs[part] == nil then incs[part] = call('HGET', K .. 'p', part) end
  return incs[part]
end

-- back ends a lease before its time.
local function back(R, token, group, counts)
  if counts then return giveBack(R, token, group) and 'r' or 'a' end
  local id = R.inc .. ':' .. group
  call('HSET', K .. 'a:' .. id, token, (call('HGET', K .. 'a:' .. id, token) or 1) - 1)
  call('ZREM', K .. 'l', R.inc .. ':' .. token .. ':' .. group)
  call('ZADD', K .. 'b:' .. id, int(sequence(token)), token)
  call('ZADD', K .. 'w:' .. group, 0, R.part)
  ready = true
  return 'r'
end

local function decide(group, part, inc, token, verdict)
  if not exists or incarnationOf(part) ~= inc then return 's' end
  local member = inc .. ':' .. token .. ':' .. group
  if behind and tonumber(call('ZSCORE', K .. 'l', member) or 0) <= now then return 'u' end
  if verdict ~= '1' then
    return call('ZSCORE', K .. 'l', member) and back(ring(inc), token, group, verdict == '0') or 'u'
  end
  if call('ZREM', K .. 'l', member) == 0 then return 'u' end
  done[inc] = done[inc] or {}
  done[inc][group] = done[inc][group] or {}
  local list = done[inc][group]
  list[#list + 1] = token
  return 'a'
end

local letters, at = {}, 16
for _ = 1, tonumber(ARGV[15]) do
  local group, n = ARGV[at], tonumber(ARGV[at + 1])
  at = at + 2
  for _ = 1, n do
    letters[#letters + 1] = decide(group, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
    at = at + 4
  end
end

for inc, byGroup in pairs(done) do
  for group, list in pairs(byGroup) do
    local id = inc .. ':' .. group
    local counted = call('EXISTS', K .. 'a:' .. id) == 1
    for from = 1, #list, 1000 do
      local to = math.min(from + 999, #list)
      call('ZREM', K .. 'u:' .. id, unpack(list, from, to))
      if counted then call('HDEL', K .. 'a:' .. id, unpack(list, from, to)) end
    end
  end
  ring(inc).passed = true
end
if exists then close(true) end
local out = answer('ok')
out[5] = join(letters)
return out
