-- Drops all messages and voids all leases. Rings keep their incarnation and go on counting, so that nobody can settle
-- a message with an id from before. Answers how many messages there were.
freely()
local out = answer('ok')
out[5] = 0
if not open(false) then return out end
out[5] = M.n
for _, inc in ipairs(call('HVALS', K .. 'p')) do
  local R = ring(inc)
  for _, name in ipairs(groups()) do
    seldom().forget(R, name)
    call('HSET', K .. 'r:' .. inc, 'c:' .. name, R.q, 'k:' .. name, R.o)
  end
  if R.o > R.d then cut(R, R.q + 1) end
end
call('DEL', K .. 'l', K .. 'h')
for _, name in ipairs(groups()) do call('DEL', K .. 'w:' .. name) end
close(true)
return out
