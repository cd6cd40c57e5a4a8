-- Claims slots for the waiting requests of one instance, oldest of the fleet first.
--
-- A slot is permission to send one request at an instant. Slots are granted no further ahead than the horizon, so that
-- what a dead instance had claimed, or a paused bucket had promised, is small.
--
-- KEYS  1..n-1  the buckets that every one of these requests takes from, all or none
--       n       the line: who waits for this set of buckets
-- ARGV  1  horizon, how far ahead a slot may lie
--       2  lead, how long before its turn a waiter asks again
--       3  rtt, what one call takes: a slot due within it goes to whoever asks
--       4  instance, unique in the fleet
--       5  cost of one request, in units
--       6  waiting, how many requests wait for a slot
--       7  points, how many of their ages follow (1..8, evenly spaced over the queue)
--       8..7+points   ages, oldest first
--       then for every bucket: its number of limits, and for each limit
--            interval  the time one unit takes to refill
--            capacity  in units, at least the cost
--            start     1: a bucket nobody used yet is full, 0: empty
--            witness   the debt that the caller knows to be left, in case the store forgot it
-- Returns  next     how long until the caller should ask again
--          pause    how long the buckets stay paused
--          others   how many requests wait in other instances
--          a debt for every limit: how long until it is full again
--          a wait for every slot granted, from now, never decreasing
--
-- All times are whole or fractional microseconds, as doubles; Redis TIME is the only clock. The state of a limit is
-- `full_at`, the instant at which it will hold its whole capacity (GCRA's theoretical arrival time):
--     the earliest instant for a cost c    s = max(now, pause, full_at - (capacity - c) * interval)
--     taking it                            full_at = max(full_at, s) + c * interval
-- Several limits: s is the latest of theirs, then all take at s. Everything is validated before the first write, since
-- Redis does not roll back.

local MOST_SLOTS = 64
local GRACE = 100000        -- a promise to ask again may be this late
local KEEP = 600000         -- ms that state outlives its debt: until then an idle bucket keeps its burst

local horizon, lead, rtt = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local instance = ARGV[4]
local cost, waiting, points = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
if not (horizon and lead and rtt and instance and cost and waiting and points) or points < 1 or waiting < points then
  return redis.error_reply('PACER claim: bad arguments')
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- This caller's line: arrivals, oldest first.
local mine = { count = waiting, arrivals = {} }
for i = 1, points do
  local age = tonumber(ARGV[7 + i])
  if not age then return redis.error_reply('PACER claim: bad age') end
  mine.arrivals[i] = now - age
end

-- When the k-th (from 0) of a line arrived, between its points by interpolation.
local function arrival(line, k)
  local points = #line.arrivals
  if line.count == 1 or points == 1 then return line.arrivals[1] end
  local place = 1 + k * (points - 1) / (line.count - 1)
  local low = math.min(math.floor(place), points - 1)
  local from = line.arrivals[low]
  return from + (line.arrivals[low + 1] - from) * (place - low)
end

-- How many of a line arrived before an instant.
local function older(line, instant)
  local points = #line.arrivals
  if line.arrivals[1] >= instant then return 0 end
  if line.arrivals[points] < instant then return line.count end
  for low = points - 1, 1, -1 do
    local from, to = line.arrivals[low], line.arrivals[low + 1]
    if from < instant then
      local place = low - 1 + (instant - from) / (to - from)
      return math.floor(1 + place * (line.count - 1) / (points - 1))
    end
  end
  return 0
end

-- Read and settle every limit.
local limits, pauses, pause = {}, {}, 0
local arg = 7 + points
for b = 1, #KEYS - 1 do
  local count = tonumber(ARGV[arg + 1])
  if not count then return redis.error_reply('PACER claim: bad bucket') end
  arg = arg + 1
  local fields = { 'seen', 'pause_until' }
  for i = 1, count do
    fields[#fields + 1] = 'full_at.' .. i
    fields[#fields + 1] = 'interval.' .. i
  end
  local stored = redis.call('HMGET', KEYS[b], unpack(fields))
  -- A clock that went back takes every instant with it, or the bucket would stall for as long.
  local shift = math.min(0, now - (tonumber(stored[1]) or now))
  local paused = tonumber(stored[2])
  paused = paused and math.max(now, paused + shift) or now
  pauses[b] = paused
  pause = math.max(pause, paused)
  for i = 1, count do
    local interval, capacity = tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
    local start, witness = ARGV[arg + 3], tonumber(ARGV[arg + 4])
    arg = arg + 4
    if not (interval and capacity and start and witness) or interval <= 0 or capacity < cost then
      return redis.error_reply('PACER claim: bad limit')
    end
    local full_at, before = tonumber(stored[1 + 2 * i]), tonumber(stored[2 + 2 * i])
    if not full_at then
      full_at = start == '1' and now or now + capacity * interval
    else
      full_at = full_at + shift
      -- A new rate keeps the units that were spent, not the time they took at the old one.
      if before and before > 0 and before ~= interval then
        full_at = now + (full_at - now) * interval / before
      end
    end
    -- No honest debt is larger: what lies above is a clock's or a former capacity's doing.
    local ceiling = paused + (capacity + cost) * interval + horizon
    limits[#limits + 1] = {
      bucket = b, field = i, interval = interval, capacity = capacity,
      full_at = math.max(now, math.min(full_at, ceiling), now + witness),
    }
  end
end
local spacing = 0
for _, limit in ipairs(limits) do spacing = math.max(spacing, cost * limit.interval) end

-- The other instances that wait, as long as they keep their promise to ask again.
local others, others_waiting, broken = {}, 0, {}
local line = KEYS[#KEYS]
local entries = redis.call('HGETALL', line)
for i = 1, #entries, 2 do
  if entries[i] ~= instance then
    local packed = entries[i + 1]
    local promised, count, points = struct.unpack('<ddd', packed)
    if promised + GRACE < now or promised > now + 3600000000 then
      broken[#broken + 1] = entries[i]
    else
      local other = { count = count, arrivals = { struct.unpack('<' .. string.rep('d', points), packed, 25) } }
      other.arrivals[points + 1] = nil    -- struct.unpack appends where it stopped
      others[#others + 1] = other
      others_waiting = others_waiting + count
    end
  end
end

-- Grant.
local slots, next_at = {}, now
local served, most = 0, math.min(waiting, MOST_SLOTS)
while served < most do
  local slot = math.max(now, pause)
  for _, limit in ipairs(limits) do
    slot = math.max(slot, limit.full_at - (limit.capacity - cost) * limit.interval)
  end
  local turn = slot
  if slot > now + rtt then
    local ahead, me = 0, arrival(mine, served)
    for _, other in ipairs(others) do ahead = ahead + older(other, me) end
    turn = slot + ahead * spacing
  end
  if turn > now + horizon then
    next_at = math.max(turn - lead, now + 2 * rtt)
    break
  end
  for _, limit in ipairs(limits) do
    limit.full_at = math.max(limit.full_at, slot) + cost * limit.interval
  end
  served = served + 1
  slots[served] = slot - now
end

-- Whoever is behind others asks again in time to notice that they are gone. First in line, its own turn is exact.
if served < most and pause <= now then
  local heads, me = 0, arrival(mine, served)
  for _, other in ipairs(others) do
    if other.arrivals[1] < me then heads = heads + 1 end
  end
  if heads == 1 then
    next_at = math.min(next_at, now + math.max(1000000, spacing))
  elseif heads > 1 then
    next_at = math.min(next_at, now + math.max(4000000, 4 * spacing))
  end
end

-- Write.
local first = 1
for b = 1, #KEYS - 1 do
  local fields, longest = { 'seen', now }, pauses[b]
  while limits[first] and limits[first].bucket == b do
    local limit = limits[first]
    fields[#fields + 1] = 'full_at.' .. limit.field
    fields[#fields + 1] = limit.full_at
    fields[#fields + 1] = 'interval.' .. limit.field
    fields[#fields + 1] = limit.interval
    longest = math.max(longest, limit.full_at)
    first = first + 1
  end
  if pauses[b] > now then
    fields[#fields + 1] = 'pause_until'
    fields[#fields + 1] = pauses[b]
  else
    redis.call('HDEL', KEYS[b], 'pause_until')
  end
  redis.call('HSET', KEYS[b], unpack(fields))
  redis.call('PEXPIRE', KEYS[b], math.ceil((longest - now) / 1000) + KEEP)
end
for _, gone in ipairs(broken) do redis.call('HDEL', line, gone) end
local left = waiting - served
if left > 0 then
  local rest = math.min(left, points)
  local arrivals = {}
  for i = 1, rest do
    local k = rest == 1 and 0 or (i - 1) * (left - 1) / (rest - 1)
    arrivals[i] = arrival(mine, served + k)
  end
  redis.call('HSET', line, instance,
    struct.pack('<ddd' .. string.rep('d', rest), next_at, left, rest, unpack(arrivals)))
  redis.call('PEXPIRE', line, math.ceil((next_at - now) / 1000) + KEEP)
else
  redis.call('HDEL', line, instance)
end

local reply = { math.ceil(next_at - now), math.ceil(pause - now), others_waiting }
for _, limit in ipairs(limits) do reply[#reply + 1] = math.ceil(limit.full_at - now) end
for _, slot in ipairs(slots) do reply[#reply + 1] = math.ceil(slot) end
return reply
