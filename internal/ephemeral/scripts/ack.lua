-- Settles messages for several callers. ARGV: 15 how many callers, then for each: group, how many ids, and for each id:
-- partition, incarnation, token, verdict (1: settled, 0: back, 2: back without counting the delivery). Answers one letter
-- for each id: a acked, r redelivered, s stale, u unknown.
freely()
local exists = open(false)
if exists then settle() end
local incs = {}    -- by partition
local function incarnationOf(part)
  if incs[part] == nil then incs[part] = call('HGET', K .. 'p', part) end
  return incs[part]
end

local letters = {}
local range -- neighbours that are settled together: one look for all of them

local function finish()
  if not range then return end
  local R, from, i = range.R, range.from, range.at
  while from <= range.to do
    local upto = release(R, range.group, from, range.to, range.salt)
    for _ = from, upto or from do
      letters[i] = upto and 'a' or 'u'
      i = i + 1
    end
    from = (upto or from) + 1
  end
  R.passed = true
  range = nil
end

-- back ends a lease before its time.
local function back(R, group, token, counts)
  local seq = sequence(token)
  local upto, times = release(R, group, seq, seq, saltOf(token))
  if not upto then return 'u' end
  if counts then return giveBack(R, group, token, times) and 'r' or 'a' end
  putBack(R, group, token, times - 1)
  return 'r'
end

local function decide(group, part, inc, token, verdict)
  local n = #letters + 1
  letters[n] = 's'
  if not exists or incarnationOf(part) ~= inc then
    finish()
  elseif #token <= SALT or sequence(token) > ring(inc).q then
    -- None of ours; and beyond some size, one more is no other number.
    finish()
    letters[n] = 'u'
  elseif verdict ~= '1' then
    finish()
    letters[n] = back(ring(inc), group, token, verdict == '0')
  else
    local seq, salt = sequence(token), saltOf(token)
    if range and seq == range.to + 1 and salt == range.salt and group == range.group and inc == range.R.inc then
      range.to = seq
    else
      finish()
      range = {R = ring(inc), group = group, salt = salt, from = seq, to = seq, at = n}
    end
  end
end

local at = 16
for _ = 1, tonumber(ARGV[15]) do
  local group, n = ARGV[at], tonumber(ARGV[at + 1])
  at = at + 2
  for _ = 1, n do
    decide(group, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
    at = at + 4
  end
end
finish()
if exists then close(true) end
local out = answer('ok')
out[5] = join(letters)
return out
