-- Stores what several callers push. ARGV: 15 salt, 16 how many callers, then for each: partition, how many payloads, the
-- payloads. Of one caller's, all are stored or none. Answers a letter for each caller: k stored, f full.
if open(true) == nil then return answer('redeclare') end
settle()

local salt = ARGV[15] .. ':'
local SEGMENT = 16 -- messages: a pop of one reads a whole segment
local touched = {}

-- makeRoom drops the oldest messages of a partition until a push fits, if that helps.
local function makeRoom(part, overCount, overBytes)
  local R = M.po == 1 and ringOf(part, false)
  if not R or R.o - R.d < overCount or R.y - R.f < overBytes then return false end
  local below, from = nil, '-'
  while not below do
    for _, e in ipairs(call('XRANGE', K .. 's:' .. R.inc, from, '+', 'COUNT', 20)) do
      local S = segment(e)
      from = '(' .. e[1]
      for i = 1, S.n do
        if S.first + i - 1 >= R.h and not below then
          overCount, overBytes = overCount - 1, overBytes - #S.payloads[i + 2]
          if overCount <= 0 and overBytes <= 0 then below = S.first + i end
        end
      end
    end
  end
  seldom().drop(R, below, 'db')
  return true
end

local function append(part, first, last, bytes)
  local R = ringOf(part, true)
  local stream, seq = K .. 's:' .. R.inc, math.max(R.q + 1, now * 1024)
  if R.o == R.d then
    R.h, R.cut = seq, true
    call('ZADD', K .. 'h', int(seq), R.inc)
  end
  for from = first, last, SEGMENT do
    local to = math.min(from + SEGMENT - 1, last)
    local n, id, before = to - from + 1, int(seq) .. '-' .. int(R.o + 1), int(R.y)
    for i = from, to do R.y = R.y + #ARGV[i] end
    if n % 2 == 0 then
      call('XADD', stream, id, before, salt .. n, unpack(ARGV, from, to))
    elseif n == 1 then
      call('XADD', stream, id, before, salt .. n, ARGV[from], '')
    else
      local list = {unpack(ARGV, from, to)}
      list[n + 1] = ''
      call('XADD', stream, id, before, salt .. n, unpack(list))
    end
    R.o, seq = R.o + n, seq + n
    R.q = seq - 1
  end
  R.grown = true
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
