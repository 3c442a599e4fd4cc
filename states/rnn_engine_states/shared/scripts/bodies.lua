-- The beginning of other scripts: a function `remove(key)`, which removes a body from the index of the object store.
-- KEYS: used, sizes, total. If the total is no valid number, the sizes are added up again.
local function whole(text)
    local number = tonumber(text)
    return number and number >= 0 and number < 2^53 and number % 1 == 0 and number or nil
end
local function count(bytes) redis.call('SET', KEYS[3], string.format('%.0f', bytes)) end
local function total()
    local known = whole(redis.call('GET', KEYS[3]))
    if known then return known end
    local sum = 0
    for _, size in ipairs(redis.call('HVALS', KEYS[2])) do sum = sum + (whole(size) or 0) end
    return sum
end
local function remove(key)
    local before = total()
    redis.call('UNLINK', key)
    redis.call('ZREM', KEYS[1], key)
    count(before - (whole(redis.call('HGET', KEYS[2], key)) or 0))
    redis.call('HDEL', KEYS[2], key)
end
