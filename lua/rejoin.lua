-- Agrees with the fleet on when to pace through Redis again after it was lost.
--
-- Instances notice that Redis is back at different moments. One that went back to the full rate while others still send
-- their share on their own would take the fleet above its limit, so all return at one instant: the first sets it. Being a
-- write, it also shows that Redis takes writes.
--
-- KEYS  1  the agreed instant, as the expiry of a key
-- ARGV  1  milliseconds from now, where nothing is agreed yet
-- Returns  milliseconds until the agreed instant

local settle = tonumber(ARGV[1])
if not settle or settle <= 0 then return redis.error_reply('PACER rejoin: bad arguments') end
local left = redis.call('PTTL', KEYS[1])
if left > 0 then return left end
redis.call('SET', KEYS[1], '1', 'PX', settle)
return settle
