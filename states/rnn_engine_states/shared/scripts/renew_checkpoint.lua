-- A script that restarts the time to live of a checkpoint's record and of the bitmaps along its path. It sets the
-- checkpoint's bit again, since the bitmap of its block may have been evicted meanwhile. It returns 1, or 0 if there is
-- no such record. KEYS: as for put_checkpoint.lua. ARGV: time to live in seconds, number of the bit, 1 if logits are
-- needed.
local logits = redis.call('HGET', KEYS[1], 'logits')
if logits ~= '1' and logits ~= ARGV[3] then return 0 end
local bit = redis.pcall('SETBIT', KEYS[2], ARGV[2], 1)
if type(bit) == 'table' then return 0 end
for number = 1, #KEYS do redis.call('EXPIRE', KEYS[number], ARGV[1]) end
return 1
