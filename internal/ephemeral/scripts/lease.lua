-- labelOf tells how often a message was delivered to a group, and how many deliveries were taken back. While a message is
-- leased, its label is that of the run; so a run that is over cannot end a later lease.
local function labelOf(id, token)
  local label = call('HGET', K .. 'a:' .. id, token) or '1:0'
  local times, undone = string.match(label, '(%d+):(%d+)')
  return label, tonumber(times), tonumber(undone)
end

-- tidy forgets the runs of a group in which nothing is left.
local function tidy(R, group)
  local id = R.inc .. ':' .. group
  local low = call('ZRANGE', K .. 'u:' .. id, 0, 0)[1]
  local below = low and '(' .. int(sequence(low)) or '+inf'
  for _, run in ipairs(call('ZRANGEBYSCORE', K .. 'e:' .. id, '-inf', below)) do
    if not low or tonumber(string.match(run, ':(%d+):')) < sequence(low) then
      call('ZREM', K .. 'e:' .. id, run)
      call('ZREM', K .. 'l', R.inc .. ':' .. run .. ':' .. group)
    end
  end
end

