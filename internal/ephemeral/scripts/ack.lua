-- Settles messages for several callers. ARGV: 15 how many callers, then for each: group, how many ids, and for each id:
-- partition, incarnation, token, verdict (1: settled, 0: back, 2: back without counting the delivery). Answers one letter
-- for each id: a acked, r redelivered, s stale, u unknown.
freely()
local exists = open(false)
if exists then settle() end
local incs = {}    -- by partition
local leases = {}  -- by incarnation and group: which of the tokens are leased, and which of them get settled

local function incarnationOf(part)
  if incs[part] == nil then incs[part] = call('HGET', K .. 'p', part) end
  return incs[part]
end

-- each calls visit for every id, with the list it belongs to; nil when its ring is gone.
local function each(visit)
  local at = 16
  for _ = 1, tonumber(ARGV[15]) do
    local group, n = ARGV[at], tonumber(ARGV[at + 1])
    at = at + 2
    for _ = 1, n do
      local inc, list = ARGV[at + 1], nil
      if exists and incarnationOf(ARGV[at]) == inc then
        local id = inc .. ':' .. group
        list = leases[id]
        if not list then
          list = {id = id, inc = inc, group = group, tokens = {}, live = {}, done = {}}
          leases[id] = list
        end
      end
      visit(list, ARGV[at + 2], ARGV[at + 3])
      at = at + 4
    end
  end
end

-- look finds out which of the tokens are leased, in few calls.
local function look(list)
  local returned = call('EXISTS', K .. 'b:' .. list.id) == 1
  for from = 1, #list.tokens, 1000 do
    local piece = {unpack(list.tokens, from, math.min(from + 999, #list.tokens))}
    local out = call('ZMSCORE', K .. 'u:' .. list.id, unpack(piece))
    local back = returned and call('ZMSCORE', K .. 'b:' .. list.id, unpack(piece)) or {}
    for i, token in ipairs(piece) do list.live[token] = out[i] and not back[i] end
  end
end

-- undo takes back a delivery as if it had not been.
local function undo(list, token)
  local R = ring(list.inc)
  local _, times, undone = labelOf(list.id, token)
  call('HSET', K .. 'a:' .. list.id, token, times - 1 .. ':' .. undone + 1)
  call('ZADD', K .. 'b:' .. list.id, sequence(token), token)
  call('ZADD', K .. 'w:' .. list.group, 0, R.part)
  ready = true
end

local function decide(list, token, verdict)
  if not list then return 's' end
  if not list.live[token] then return 'u' end
  list.live[token] = false
  if verdict == '0' then return seldom().giveBack(ring(list.inc), token, list.group) and 'r' or 'a' end
  if verdict == '2' then
    undo(list, token)
    return 'r'
  end
  list.done[#list.done + 1] = token
  return 'a'
end

-- finish forgets what is settled.
local function finish(list)
  local counted = call('EXISTS', K .. 'a:' .. list.id) == 1
  for from = 1, #list.done, 1000 do
    local to = math.min(from + 999, #list.done)
    call('ZREM', K .. 'u:' .. list.id, unpack(list.done, from, to))
    if counted then call('HDEL', K .. 'a:' .. list.id, unpack(list.done, from, to)) end
  end
  local R = ring(list.inc)
  tidy(R, list.group)
  R.passed = true
end

local letters = {}
each(function(list, token)
  if list then list.tokens[#list.tokens + 1] = token end
end)
for _, list in pairs(leases) do look(list) end
each(function(list, token, verdict) letters[#letters + 1] = decide(list, token, verdict) end)
for _, list in pairs(leases) do finish(list) end
if exists then close(true) end
local out = answer('ok')
out[5] = join(letters)
return out
