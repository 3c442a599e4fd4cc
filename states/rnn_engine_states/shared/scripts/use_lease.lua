-- A script that restarts the time to live of an owner's lease. It returns 1, or 0 if the lease is invalid or expired.
-- KEYS: leases, times of their last uses. ARGV: the owner.
local lease, used = redis.call('HGET', KEYS[1], ARGV[1]), redis.call('ZSCORE', KEYS[2], ARGV[1])
local understood, content = pcall(cjson.decode, lease)
local ttl = understood and type(content) == 'table' and tonumber(content.ttl)
if not ttl or not used or not (tonumber(used) + ttl > tonumber(now)) then return 0 end
redis.call('ZADD', KEYS[2], now, ARGV[1])
return 1
