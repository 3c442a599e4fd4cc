-- A script that finds the first usable checkpoint of a list, and deletes the records that can't be parsed. It returns
-- how many it deleted, then the usable checkpoint's number in the list, logits, kind and size, if there is one.
-- KEYS: records of checkpoints, the longest first. ARGV: 1 if the first one needs logits, then all valid kinds.
local kinds, unreadable = {}, 0
for number = 2, #ARGV do kinds[ARGV[number]] = true end
for number, key in ipairs(KEYS) do
    local found = redis.pcall('HMGET', key, 'logits', 'kind', 'size')
    local logits, kind, size = found[1], found[2], found[3]
    local is_there = found.err or logits or kind or size
    if is_there and not ((logits == '0' or logits == '1') and kinds[kind] and string.match(size or '', '^[1-9]%d*$')
            and #size <= 15) then
        redis.call('UNLINK', key)
        unreadable = unreadable + 1
    elseif is_there and (logits == '1' or number > 1 or ARGV[1] == '0') then
        return {unreadable, number, logits, kind, size}
    end
end
return {unreadable}
