-- A script that adds a body to the index and returns the keys of the bodies that it evicts: up to 100 that were not
-- used within the time to live, then the least recently used while the total exceeds the capacity. KEYS: used, sizes,
-- total, the body's key. ARGV: time to live in seconds, the body's bytes, capacity in bytes.
local now = tonumber(redis.call('TIME')[1])
remove(KEYS[4])
redis.call('SET', KEYS[4], ARGV[2], 'EX', ARGV[1])
redis.call('ZADD', KEYS[1], now, KEYS[4])
count(total() + ARGV[2])
redis.call('HSET', KEYS[2], KEYS[4], ARGV[2])
local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. (now - ARGV[1]), 'LIMIT', 0, 100)
for _, key in ipairs(gone) do remove(key) end
while total() > tonumber(ARGV[3]) do
    local oldest = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
    if not oldest then
        redis.call('DEL', KEYS[2], KEYS[3])
        break
    end
    remove(oldest)
    gone[#gone + 1] = oldest
end
return gone
