-- Describes the queues of a bucket. KEYS: 1 the registry, 2 what the keys of its queues begin with. ARGV: 1 the tenant
-- with a slash, or empty for all.
local out, base = {}, string.sub(KEYS[2], 1, -2)
for _, queue in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if string.sub(queue, 1, #ARGV[1]) == ARGV[1] then
    local K = base .. queue .. ':'
    local v = redis.call('HMGET', K .. 'm', 'dv', 'n', 'b', 'db', 'dt', 'dr', 'mb', 'ml', 'po', 'tt', 'ls', 'rl', 'wm', 'wc')
    if v[1] then
      for i = 1, 14 do v[i] = v[i] or '0' end
      v[15], v[16], v[17] = queue, redis.call('HLEN', K .. 'p'), redis.call('ZCARD', K .. 'g')
      out[#out + 1] = v
    end
  end
end
return out
