-- A script that returns 1 if the store has some arrays, else 0. If they can expire, it restarts their time to live.
-- KEYS: the arrays. ARGV: time to live in seconds.
redis.call('EXPIRE', KEYS[1], ARGV[1], 'XX')
return redis.call('EXISTS', KEYS[1])
