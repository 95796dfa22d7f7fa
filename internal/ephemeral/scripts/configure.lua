-- Puts a declaration in force, or takes one back that is not there any more (ARGV 15: its version).
local retract = tonumber(ARGV[15] or 0)
if retract > 0 then
  if not open(false) or M.dv ~= retract then return answer('ok') end
  adopt()
  stored = false
else
  if open(true) == nil then return answer('redeclare') end
end
settle()
if M.tt > 0 then soon(now) end
if M.dv == 0 then soon(now + tonumber(ARGV[12])) end
close(false)
return answer('ok')
