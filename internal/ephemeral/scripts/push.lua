-- ARGV: 15 partition, 16 salt, then the payloads. All of them are stored, or none.
local count, bytes = #ARGV - 16, 0
for i = 17, #ARGV do bytes = bytes + #ARGV[i] end

if open(true) == nil then return answer('redeclare') end
if count > M.ml or bytes > M.mb then return answer('full') end
settle()

local R
local overCount, overBytes = M.n + count - M.ml, M.b + bytes - M.mb
if overCount > 0 or overBytes > 0 then
  R = M.po == 1 and ringOf(ARGV[15], false)
  if not R or R.o - R.d < overCount or R.y - R.f < overBytes then
    close(true)
    return answer('full')
  end
  -- The oldest go until there is room.
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
end

R = R or ringOf(ARGV[15], true)
local stream, seq = K .. 's:' .. R.inc, math.max(R.q + 1, now * 1024)
if R.o == R.d then
  R.h = seq
  call('ZADD', K .. 'h', int(seq), R.inc)
end
for i = 17, #ARGV do
  R.o, R.y, R.q = R.o + 1, R.y + #ARGV[i], seq
  call('XADD', stream, int(seq) .. '-' .. int(R.o), int(R.y) .. ':' .. ARGV[16], ARGV[i])
  seq = seq + 1
end
R.dirty = true
M.n, M.b = M.n + count, M.b + bytes
for _, name in ipairs(groups()) do call('ZADD', K .. 'w:' .. name, 0, R.part) end
if M.tt > 0 then soon(now + M.tt * 1000 + 1) end
ready = true
close(true)
return answer('ok')
