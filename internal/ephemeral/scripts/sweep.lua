-- Does what is due in a queue nobody calls, and says when to look again.
--
-- ARGV: 15 ms after which an implicit queue that holds messages and that nobody touched is given up, 16 ms after which a
-- group of a declared queue that has not popped is forgotten (0: never), 17 ms between looks at a queue where nothing is
-- due. Answers: what happened (gone, kept), drops, how many groups were forgotten.
freely()
if not open(false) then
  call('ZREM', KEYS[2], QUEUE)
  return answer('gone')
end
local behind = settle()

local idle, unread, patience, far = tonumber(ARGV[12]), tonumber(ARGV[15]), tonumber(ARGV[16]), tonumber(ARGV[17])
if M.dv == 0 then
  local age = now - M.tc
  if M.n == 0 and age >= idle or M.n > 0 and age >= unread then
    -- Nobody ever came for them: they got too old.
    drops.dt = drops.dt + M.n
    seldom().destroy()
    return answer('gone')
  end
  patience = math.max(10 * M.ls * 1000, idle)
end

local forgotten = 0
if patience > 0 then
  for _, name in ipairs(call('ZRANGEBYSCORE', K .. 'g', '-inf', now - patience)) do
    for _, inc in ipairs(call('HVALS', K .. 'p')) do
      local R = ring(inc)
      seldom().forget(R, name)
      call('HDEL', K .. 'r:' .. inc, 'c:' .. name, 'k:' .. name)
      R.passed = true
    end
    call('DEL', K .. 'w:' .. name)
    call('HDEL', K .. 'k', name)
    call('ZREM', K .. 'g', name)
    forgotten = forgotten + 1
  end
  if forgotten > 0 then known = nil end
end

-- Rings that are empty and that nobody pushes to any more go, some at a time.
local page = call('HSCAN', K .. 'p', call('HGET', KEYS[1], 'pg') or '0', 'COUNT', 100)
local tired = (now - idle) * 1024
for i = 1, #page[2], 2 do
  local part, R = page[2][i], ring(page[2][i + 1])
  if R.o == R.d and R.q < tired and not R.passed then
    for _, name in ipairs(groups()) do
      seldom().forget(R, name)
      call('ZREM', K .. 'w:' .. name, part)
    end
    call('DEL', K .. 'r:' .. R.inc)
    call('HDEL', K .. 'p', part)
    rings[R.inc] = nil
  end
end
call('HSET', KEYS[1], 'pg', page[1])

local next = now + far
local function by(at) if at < next then next = at end end
if behind then by(now) end
if page[1] ~= '0' then by(now + 1000) end
local lease = call('ZRANGE', K .. 'l', 0, 0, 'WITHSCORES')
if lease[2] then by(tonumber(lease[2])) end
local oldest = M.tt > 0 and call('ZRANGE', K .. 'h', 0, 0, 'WITHSCORES') or {}
if oldest[2] then by(math.floor(oldest[2] / 1024) + M.tt * 1000 + 1) end
if M.dv == 0 then by(M.tc + (M.n == 0 and idle or unread)) end
local quiet = patience > 0 and call('ZRANGE', K .. 'g', 0, 0, 'WITHSCORES') or {}
if quiet[2] then by(quiet[2] + patience) end
M.du, M.moved = math.max(next, now + 1), true
close(false)
local out = answer('kept')
out[5] = forgotten
return out
