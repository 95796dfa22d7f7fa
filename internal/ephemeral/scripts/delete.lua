-- Removes the queue. ARGV: 15 version of the deletion, 16 ms for which older declarations stay buried.
freely()
local version = tonumber(ARGV[15])
local was = open(false)
if was and M.dv > version then return answer('none') end -- declared again meanwhile
call('SET', K .. 'x', version, 'PX', ARGV[16])
if not was then return answer('none') end
seldom().destroy()
if M.wt == '1' then call('PUBLISH', ARGV[13], QUEUE) end
return answer('ok')
