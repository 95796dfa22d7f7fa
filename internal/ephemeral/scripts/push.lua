-- Stores what several callers push. ARGV: 15 salt, 16 how many callers, then for each: partition, how many payloads, the
-- payloads. Of one caller's, all are stored or none. Answers a letter for each caller: k stored, f full.
if open(true) == nil then return answer('redeclare') end
settle()

local salt = ':' .. ARGV[15]
local touched = {}

-- makeRoom drops the oldest messages of a partition until a push fits, if that helps.
local function makeRoom(part, overCount, overBytes)
  local R = M.po == 1 and ringOf(part, false)
  if not R or R.o - R.d < overCount or R.y - R.f < overBytes then return false end
  local below, from = nil, '-'
  while not below do
    for _, e in ipairs(call('XRANGE', K .. 's:' .. R.inc, from, '+', 'COUNT', 100)) do
      local seq, ord = string.match(e[1], '(%d+)-(%d+)')
      from = '(' .. e[1]
      if ord - R.d >= overCount and string.match(e[2][1], '%d+') - R.f >= overBytes then
        below = seq + 1
        break
      end
    end
  end
  drop(R, below, 'db')
  return true
end

local function append(part, first, last, bytes)
  local R = ringOf(part, true)
  local stream, seq = K .. 's:' .. R.inc, math.max(R.q + 1, now * 1024)
  if R.o == R.d then
    R.h = seq
    call('ZADD', K .. 'h', int(seq), R.inc)
  end
  for i = first, last do
    R.o, R.y, R.q = R.o + 1, R.y + #ARGV[i], seq
    call('XADD', stream, int(seq) .. '-' .. int(R.o), int(R.y) .. salt, ARGV[i])
    seq = seq + 1
  end
  R.dirty = true
  M.n, M.b = M.n + last - first + 1, M.b + bytes
  touched[part] = true
end

local function store(part, first, last)
  local count, bytes = last - first + 1, 0
  for i = first, last do bytes = bytes + #ARGV[i] end
  if count > M.ml or bytes > M.mb then return false end
  local overCount, overBytes = M.n + count - M.ml, M.b + bytes - M.mb
  if (overCount > 0 or overBytes > 0) and not makeRoom(part, overCount, overBytes) then return false end
  append(part, first, last, bytes)
  return true
end

local letters, at = {}, 17
for i = 1, tonumber(ARGV[16]) do
  local first, count = at + 2, tonumber(ARGV[at + 1])
  letters[i] = store(ARGV[at], first, first + count - 1) and 'k' or 'f'
  at = first + count
end
for part in pairs(touched) do
  ready = true
  for _, name in ipairs(groups()) do call('ZADD', K .. 'w:' .. name, 0, part) end
end
if ready and M.tt > 0 then soon(now + M.tt * 1000 + 1) end
close(true)
local out = answer('ok')
out[5] = join(letters)
return out
