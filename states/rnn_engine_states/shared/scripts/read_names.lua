-- A script that reads the changes since a known revision, or all names if that revision is no longer logged. KEYS: the
-- hash with the revision, then entries, leases, times of leases' last uses, and the log of changes. ARGV: the known
-- revision's mark and number, and the time when it was read.
local head = redis.call('HMGET', KEYS[1], 'mark', 'revision', 'version')
local mark, revision, version = head[1] or '', whole(head[2]), whole(head[3])
local missing = revision - tonumber(ARGV[2])
local follows = ARGV[1] ~= '' and missing == 0 and mark == ARGV[1]
if missing > 0 and ARGV[1] ~= '' then
    local last = redis.call('LINDEX', KEYS[5], -missing - 1)
    follows = last and string.sub(last, 1, #ARGV[1]) == ARGV[1]
end
if follows then
    local changes = missing > 0 and redis.call('LRANGE', KEYS[5], -missing, -1) or {}
    local used = redis.call('ZRANGEBYSCORE', KEYS[4], ARGV[3], '+inf', 'WITHSCORES')
    return {now, mark, digits(revision), digits(version), 0, changes, {}, used}
end
return {now, mark, digits(revision), digits(version), 1, redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3]),
    redis.call('ZRANGE', KEYS[4], 0, -1, 'WITHSCORES')}
