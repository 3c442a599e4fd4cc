-- A script that writes the record of a checkpoint and sets the checkpoint's bit in the bitmap of its block. It also
-- creates the missing bitmaps of all blocks before, or restarts their time to live: a bitmap, even an empty one, shows
-- that a path leads through its block. KEYS: the record, the bitmap of its block, the bitmaps of all blocks before.
-- ARGV: time to live in seconds, number of the bit, 1 if there are logits, kind, size in bytes.
redis.call('HSET', KEYS[1], 'logits', ARGV[3], 'kind', ARGV[4], 'size', ARGV[5])
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('SETBIT', KEYS[2], ARGV[2], 1)
redis.call('EXPIRE', KEYS[2], ARGV[1])
for number = 3, #KEYS do
    if redis.call('EXPIRE', KEYS[number], ARGV[1]) == 0 then redis.call('SET', KEYS[number], '', 'EX', ARGV[1]) end
end
