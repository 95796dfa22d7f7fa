-- A token is a sequence with a salt.
local function sequence(token) return tonumber(string.sub(token, 1, -1 - SALT)) end
local function saltOf(token) return string.sub(token, -SALT) end

local function parse(run)
  local first, last, salt, times = string.match(run, '(%d+):(%d+):(%d+):(%d+)')
  return tonumber(first), tonumber(last), salt, tonumber(times)
end

-- grant leases neighbours to a group until a deadline.
local function grant(R, group, first, last, salt, times, deadline)
  local run = int(first) .. ':' .. int(last) .. ':' .. salt .. ':' .. times
  call('ZADD', K .. 'e:' .. R.inc .. ':' .. group, int(first), run)
  call('ZADD', K .. 'l', int(deadline), R.inc .. ':' .. run .. ':' .. group)
end

local function revoke(R, group, run)
  call('ZREM', K .. 'e:' .. R.inc .. ':' .. group, run)
  call('ZREM', K .. 'l', R.inc .. ':' .. run .. ':' .. group)
end

-- release ends the lease of messages from one sequence to another, as far as they are in one run. It answers the last of
-- them and how often they were delivered; nil when the first one is not leased.
local function release(R, group, from, to, salt)
  local run = call('ZREVRANGEBYSCORE', K .. 'e:' .. R.inc .. ':' .. group, int(from), '-inf', 'LIMIT', 0, 1)[1]
  if not run then return nil end
  local first, last, itsSalt, times = parse(run)
  if last < from or itsSalt ~= salt then return nil end
  to = math.min(to, last)
  if first < from or to < last then
    local deadline = call('ZSCORE', K .. 'l', R.inc .. ':' .. run .. ':' .. group)
    if first < from then grant(R, group, first, from - 1, salt, times, deadline) end
    if to < last then grant(R, group, to + 1, last, salt, times, deadline) end
  end
  revoke(R, group, run)
  return to, times
end

-- putBack has a message delivered again.
local function putBack(R, group, token, times)
  call('ZADD', K .. 'b:' .. R.inc .. ':' .. group, int(sequence(token)), token .. ':' .. times)
  call('ZADD', K .. 'w:' .. group, 0, R.part)
  ready = true
end

-- giveBack is that for a message that failed: when it was delivered often enough, it is given up for the group.
local function giveBack(R, group, token, times)
  if times < M.rl then
    putBack(R, group, token, times)
    return true
  end
  drops.dr = drops.dr + 1
  R.passed = true
  return false
end

