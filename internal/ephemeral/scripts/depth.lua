-- Answers what a queue holds: declared, messages, bytes, then a list of partition, messages, bytes for every ring that
-- holds something, and a list of group, owed, skipped. ARGV: 15 the one group that is asked for, or empty.
if not open(false) then return answer('none') end
local names = groups()
if ARGV[15] ~= '' then names = {ARGV[15]} end
local out = answer('ok')
local parts, owed = {}, {}
for _, name in ipairs(names) do owed[name] = 0 end
for _, inc in ipairs(call('ZRANGE', K .. 'h', 0, -1)) do
  local R = ring(inc)
  local i = #parts
  parts[i + 1], parts[i + 2], parts[i + 3] = R.part, R.o - R.d, R.y - R.f
  for _, name in ipairs(names) do
    local passed = math.max(tonumber(call('HGET', K .. 'r:' .. inc, 'k:' .. name) or R.d), R.d)
    owed[name] = owed[name] + R.o - passed + call('ZCARD', K .. 'b:' .. inc .. ':' .. name)
    for _, run in ipairs(call('ZRANGE', K .. 'e:' .. inc .. ':' .. name, 0, -1)) do
      local first, last = parse(run)
      owed[name] = owed[name] + last - first + 1
    end
  end
end
local list = {}
for _, name in ipairs(names) do
  local i = #list
  list[i + 1], list[i + 2], list[i + 3] = name, owed[name], tonumber(call('HGET', K .. 'k', name) or 0)
end
out[5], out[6], out[7], out[8], out[9] = M.dv, M.n, M.b, parts, list
return out
