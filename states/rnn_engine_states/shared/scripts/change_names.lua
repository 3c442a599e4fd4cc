-- A script that applies a change if the names still have the known revision and all needed arrays exist. KEYS: as for
-- read_names.lua, then arrays that must exist, then arrays to delete. ARGV: the known revision's mark and number, the
-- new mark, the last version, the change, how many arrays must exist, how many changes are logged.
local head = redis.call('HMGET', KEYS[1], 'mark', 'revision')
if (head[1] or '') ~= ARGV[1] or whole(head[2]) ~= tonumber(ARGV[2]) then return 'conflict' end
local change, needed = cjson.decode(ARGV[5]), tonumber(ARGV[6])
for number = 6, 5 + needed do
    if redis.call('EXISTS', KEYS[number]) == 0 then return 'missing' end
end
redis.call('HSET', KEYS[1], 'mark', ARGV[3], 'revision', digits(ARGV[2] + 1), 'version', ARGV[4])
for _, id in ipairs(change.removed) do redis.call('HDEL', KEYS[2], id) end
for id, entry in pairs(change.entries) do redis.call('HSET', KEYS[2], id, entry) end
for owner, lease in pairs(change.leases) do
    redis.call('HSET', KEYS[3], owner, lease)
    redis.call('ZADD', KEYS[4], now, owner)
end
for _, owner in ipairs(change.ended) do
    redis.call('HDEL', KEYS[3], owner)
    redis.call('ZREM', KEYS[4], owner)
end
redis.call('RPUSH', KEYS[5], ARGV[3] .. ARGV[5])
redis.call('LTRIM', KEYS[5], -tonumber(ARGV[7]), -1)
for number = 6, 5 + needed do redis.call('PERSIST', KEYS[number]) end
for number = 6 + needed, #KEYS do redis.call('UNLINK', KEYS[number]) end
return 'done'
