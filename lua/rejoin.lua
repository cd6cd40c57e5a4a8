-- Agrees with the fleet on when to pace through Redis again after it was lost.
--
-- Instances notice that Redis is back at different moments. One that went back to the full rate while others still send
-- their share on their own would take the fleet above its limit, so all return at one instant: the first sets it. Being a
-- write, it also shows that Redis takes writes.
--
-- KEYS  1  the agreed instant and how long Redis had been lost by then, until that instant
-- ARGV  1  milliseconds from now, where nothing is agreed yet
--       2  microseconds for which the caller has been without Redis
-- Returns  milliseconds until the agreed instant
--          that instant, in microseconds of Redis TIME
--          the length of the outage, in microseconds

local settle, lost = tonumber(ARGV[1]), tonumber(ARGV[2])
if not (settle and lost) or settle <= 0 then return redis.error_reply('PACER rejoin: bad arguments') end
local left, agreed = redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[1])
if left > 0 and agreed then
  local at, length = string.match(agreed, '^(%d+) (%d+)$')
  if at then return { left, tonumber(at), tonumber(length) } end
end
local time = redis.call('TIME')
local at, length = time[1] * 1000000 + time[2] + settle * 1000, lost + settle * 1000
redis.call('SET', KEYS[1], string.format('%.0f %.0f', at, length), 'PX', settle)
return { settle, at, length }
