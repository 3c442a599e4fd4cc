-- The beginning of other scripts: two functions, and the store's time as `now`. `whole` parses a counter, as 0 if it is
-- not a whole number; `digits` formats a number without an exponent.
local function whole(text)
    local number = tonumber(text)
    return number and number >= 0 and number < 2^53 and number % 1 == 0 and number or 0
end
local function digits(number) return string.format('%.0f', number) end
local time = redis.call('TIME')
local now = string.format('%d.%06d', time[1], time[2])
