-- join puts letters together, in pieces that fit the stack.
local function join(letters)
  local pieces = {}
  for from = 1, #letters, 100 do
    pieces[#pieces + 1] = table.concat(letters, '', from, math.min(from + 99, #letters))
  end
  return table.concat(pieces)
end

