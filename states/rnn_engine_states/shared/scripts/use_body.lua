-- A script that marks a body in the index as used. It returns 1, or 0 if the index does not have the body. KEYS: used,
-- sizes, total, the body's key. ARGV: time to live in seconds.
if redis.call('EXPIRE', KEYS[4], ARGV[1]) == 0 then return 0 end
redis.call('ZADD', KEYS[1], 'XX', redis.call('TIME')[1], KEYS[4])
return 1
