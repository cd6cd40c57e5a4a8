-- Pauses one bucket for the whole fleet, because the OTA said so. Never shortens a pause.
--
-- KEYS  1  the bucket
-- ARGV  1  how long from now nothing may be sent
--       2  the channel on which instances listen
--       then for each limit of the bucket one of
--            b interval capacity cut floor
--                 a token bucket; cut: what an adaptive limit's rate is multiplied by, or 0; floor: its lowest
--            -    any other
-- Returns  how long the bucket now stays paused
--
-- Times are microseconds on Redis TIME. Every token bucket is spent down to one unit at the end of the pause, so that the
-- fleet resumes with a probe and at its pace, not with a burst. One storm of throttle answers cuts an adaptive rate once:
-- answers that come during a pause, or within a second of the last cut, belong to the same. Published: the pause that now
-- holds, and the bucket's key.

local KEEP = 600000   -- ms, as in claim.lua
local STORM = 1000000

local function fail(what) return redis.error_reply('PACER pause: bad ' .. what) end

local wait, channel = tonumber(ARGV[1]), ARGV[2]
if not (wait and channel) or wait < 0 then return fail('arguments') end
local limits, cursor = {}, 3
while cursor <= #ARGV do
  local limit = {}
  if ARGV[cursor] == 'b' then
    limit.interval, limit.capacity = tonumber(ARGV[cursor + 1]), tonumber(ARGV[cursor + 2])
    limit.cut, limit.floor = tonumber(ARGV[cursor + 3]), tonumber(ARGV[cursor + 4])
    if not (limit.interval and limit.capacity and limit.cut and limit.floor) then return fail('limit') end
    cursor = cursor + 4
  end
  cursor = cursor + 1
  limits[#limits + 1] = limit
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local seen, paused = unpack(redis.call('HMGET', KEYS[1], 'seen', 'pause_until'))
local shift = math.min(0, now - (tonumber(seen) or now))
paused = (tonumber(paused) or now) + shift
local pause = math.max(now + wait, paused)

local longest = pause
local write = { 'seen', now, 'pause_until', pause }
local function put(field, value)
  write[#write + 1] = field
  write[#write + 1] = value
end
for i, limit in ipairs(limits) do
  if limit.interval then
    local stored = redis.call('HMGET', KEYS[1], 'full_at.' .. i, 'pace.' .. i, 'interval.' .. i, 'capacity.' .. i,
      'rate.' .. i, 'cut_at.' .. i)
    local full_at, before = tonumber(stored[1]), tonumber(stored[2])
    local interval, capacity = tonumber(stored[3]), tonumber(stored[4])
    local rate, cut_at = tonumber(stored[5]) or 1, tonumber(stored[6])
    if not (full_at and before and interval and capacity) then
      full_at, before, interval, capacity = now, limit.interval, limit.interval, limit.capacity
      put('interval.' .. i, interval)
      put('capacity.' .. i, capacity)
      put('asserted.' .. i, now)
    else
      full_at = full_at + shift
    end
    if limit.cut > 0 then
      if paused <= now and (not cut_at or now >= cut_at + shift + STORM) then
        rate = math.max(limit.floor, rate * limit.cut)
      end
      put('rate.' .. i, rate)
      put('rate_at.' .. i, pause)
      put('cut_at.' .. i, pause)
    else
      rate = 1
    end
    local pace = interval / rate
    if pace ~= before then full_at = now + (full_at - now) * pace / before end
    full_at = math.max(full_at, pause + (capacity - 1) * pace)
    longest = math.max(longest, full_at)
    put('full_at.' .. i, full_at)
    put('pace.' .. i, pace)
  end
end
redis.call('HSET', KEYS[1], unpack(write))
redis.call('PEXPIRE', KEYS[1], math.ceil((longest - now) / 1000) + KEEP)
local left = math.ceil(pause - now)
-- Where an ACL forbids to publish, the pause stands all the same, and the others learn of it as they claim.
redis.pcall('PUBLISH', channel, string.format('pause %d %s', left, KEYS[1]))
return left
