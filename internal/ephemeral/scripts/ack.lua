-- ARGV: 15 group, then for each id: partition, incarnation, token, verdict (1: settled, 0: back, 2: back without
-- counting the delivery). Answers one letter for each: a acked, r redelivered, s stale, u unknown.
freely()
local group, n = ARGV[15], (#ARGV - 15) / 4
local letters = {}

if not open(false) then
  for i = 1, n do letters[i] = 's' end
  local out = answer('ok')
  out[5] = join(letters)
  return out
end
local behind = settle()

local done = {} -- tokens that are settled, by incarnation
local incs = {} -- by partition

local function incarnationOf(part)
  if incs[part] == nil then incs[part] = call('HGET', K .. 'p', part) end
  return incs[part]
end

local function settled(inc, token)
  local list = done[inc] or {}
  done[inc] = list
  list[#list + 1] = token
end

for i = 1, n do
  local at = 12 + 4 * i
  local part, inc, token, verdict = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local member = inc .. ':' .. token .. ':' .. group
  if incarnationOf(part) ~= inc then
    letters[i] = 's'
  elseif behind and tonumber(call('ZSCORE', K .. 'l', member) or 0) <= now then
    letters[i] = 'u'
  elseif verdict == '1' then
    if call('ZREM', K .. 'l', member) == 1 then
      settled(inc, token)
      letters[i] = 'a'
    else
      letters[i] = 'u'
    end
  elseif not call('ZSCORE', K .. 'l', member) then
    letters[i] = 'u'
  else
    local R = ring(inc)
    if verdict == '2' then
      local id = inc .. ':' .. group
      call('HSET', K .. 'a:' .. id, token, (call('HGET', K .. 'a:' .. id, token) or 1) - 1)
      call('ZREM', K .. 'l', member)
      call('ZADD', K .. 'b:' .. id, int(sequence(token)), token)
      call('ZADD', K .. 'w:' .. group, 0, R.part)
      ready = true
      letters[i] = 'r'
    else
      letters[i] = giveBack(R, token, group) and 'r' or 'a'
    end
  end
end

for inc, list in pairs(done) do
  local id = inc .. ':' .. group
  local counted = call('EXISTS', K .. 'a:' .. id) == 1
  for from = 1, #list, 1000 do
    local piece = {unpack(list, from, math.min(from + 999, #list))}
    call('ZREM', K .. 'u:' .. id, unpack(piece))
    if counted then call('HDEL', K .. 'a:' .. id, unpack(piece)) end
  end
  ring(inc).passed = true
end
close(true)
local out = answer('ok')
out[5] = join(letters)
return out
