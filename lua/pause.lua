-- Pauses one bucket for the whole fleet, because the OTA said so. Never shortens a pause.
--
-- KEYS  1  the bucket
-- ARGV  1  how long from now nothing may be sent
--       2  the channel on which instances listen for pauses
--       then for each limit: interval, capacity
-- Returns  how long the bucket now stays paused
--
-- Times are microseconds on Redis TIME. Every limit is spent down to one unit at the end of the pause, so that the fleet
-- resumes with a probe and at its pace, not with a burst. Published: the pause that now holds, and the bucket's key.

local KEEP = 600000   -- ms, as in claim.lua

local wait = tonumber(ARGV[1])
if not wait or wait < 0 or #ARGV % 2 ~= 0 then return redis.error_reply('PACER pause: bad arguments') end
local limits = {}
for i = 3, #ARGV, 2 do
  local interval, capacity = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  if not (interval and capacity) then return redis.error_reply('PACER pause: bad limit') end
  limits[#limits + 1] = { interval = interval, capacity = capacity }
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local fields = { 'seen', 'pause_until' }
for i = 1, #limits do
  fields[#fields + 1] = 'full_at.' .. i
  fields[#fields + 1] = 'interval.' .. i
end
local stored = redis.call('HMGET', KEYS[1], unpack(fields))
local shift = math.min(0, now - (tonumber(stored[1]) or now))
local pause = math.max(now + wait, (tonumber(stored[2]) or now) + shift)

local longest = pause
local write = { 'seen', now, 'pause_until', pause }
for i, limit in ipairs(limits) do
  local full_at, before = tonumber(stored[1 + 2 * i]), tonumber(stored[2 + 2 * i])
  full_at = full_at and full_at + shift or now
  if before and before > 0 and before ~= limit.interval then
    full_at = now + (full_at - now) * limit.interval / before
  end
  full_at = math.max(full_at, pause + (limit.capacity - 1) * limit.interval)
  longest = math.max(longest, full_at)
  write[#write + 1] = 'full_at.' .. i
  write[#write + 1] = full_at
  write[#write + 1] = 'interval.' .. i
  write[#write + 1] = limit.interval
end
redis.call('HSET', KEYS[1], unpack(write))
redis.call('PEXPIRE', KEYS[1], math.ceil((longest - now) / 1000) + KEEP)
local left = math.ceil(pause - now)
redis.call('PUBLISH', ARGV[2], string.format('%d %s', left, KEYS[1]))
return left
