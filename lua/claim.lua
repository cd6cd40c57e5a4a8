-- Claims slots for the waiting requests of one lane, oldest of the fleet first.
--
-- A slot is permission to send one request at an instant. Slots are granted no further ahead than the horizon, so that
-- what a dead instance had claimed, or a paused bucket had promised, is small.
--
-- KEYS  for every bucket that these requests take from, all or none:
--            the bucket
--            its leases, if it limits requests under way
--       last the line: who waits for this set of buckets
-- ARGV  1  horizon, how far ahead a slot may lie
--       2  lead, how long before its turn a waiter asks again
--       3  rtt, what one call takes: a slot due within it goes to whoever asks
--       4  lane, unique in the fleet
--       5  the channel on which instances listen
--       6  witness age, how long ago the caller saw the witnesses below
--       7  outage at, when the fleet last came back to this store after it was lost, or 0
--       8  outage, how long it had been lost; meanwhile every instance sent its share of each limit, which no bucket knows
--       9  instances, how many there may have been
--       10 cost of one request, in units
--       11 held, how many requests of the lane are under way or have a slot in hand
--       12 registered, 1 if the caller knows the store to hold its lease
--       13 waiting, how many requests wait for a slot; may be none
--       14 points, how many of them are described (up to 12: those at the front, and some of the rest)
--       15..14+2*points   place in the queue, from 0, and age of each; the first and the last are among them
--       then for every bucket: its number of limits, and for each limit one of
--            b interval capacity start witness recover
--                 a unit refills in an interval, up to capacity; start 1: a bucket nobody used yet is full, 0: empty;
--                 witness: the debt the caller knows to be left; recover: what an adaptive limit regains a second, or 0
--            w count per margin clock witness
--                 at most count units in any window of length per, or with clock 1 in each of those that the clock of the
--                 store begins; margin: kept from the edges; witness: the units the caller knows to be used
--            c most
--                 at most so many requests under way
-- Returns  next     how long until the caller should ask again
--          pause    how long the buckets stay paused
--          others   how many requests wait in other lanes for the same
--          older    how many of those go before a request that comes now
--          two numbers for every limit: b debt, the time one unit takes now; w units used, how long until one more request
--                   fits; c requests under way, 0
--          a wait for every slot granted, from now, never decreasing
--
-- All times are whole or fractional microseconds, as doubles; Redis TIME is the only clock. The state of a token bucket is
-- `full_at`, the instant at which it will hold its whole capacity (GCRA's theoretical arrival time):
--     the earliest instant for u units     s = max(now, full_at - (capacity - u) * pace)
--     taking them at s                     full_at = max(full_at, s) + u * pace
-- Several limits: s is the first instant that suits all, then all take at s. Everything is validated before the first
-- write, since Redis does not roll back.

local MOST_SLOTS = 64
local GRACE = 100000        -- a promise to ask again may be this late
local KEEP = 600000         -- ms that state outlives its debt: until then an idle bucket keeps its burst
local LEASE = 15000000      -- a lane that says nothing for so long has no requests under way
local ASSERTED = 60000000   -- the stricter of two configurations holds until nobody has asserted it for so long
local ROUNDS = 32           -- edges of clock windows of several lengths; two or three are the rule
local ENTRIES = 128         -- a sliding window remembers up to so many units one by one, more in groups

local function fail(what) return redis.error_reply('PACER claim: bad ' .. what) end

local cursor = 0
local function argument()
  cursor = cursor + 1
  return tonumber(ARGV[cursor])
end
local function word()
  cursor = cursor + 1
  return ARGV[cursor]
end

local horizon, lead, rtt = argument(), argument(), argument()
local lane, channel = word(), word()
local witness_age, outage_at, outage, instances = argument(), argument(), argument(), argument()
local cost, held, registered, waiting, points = argument(), argument(), argument(), argument(), argument()
if not (horizon and lead and rtt and lane and channel and witness_age and outage_at and outage and instances and cost
    and held and registered and waiting and points)
  or waiting < points or (waiting > 0) ~= (points > 0) then
  return fail('arguments')
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- This caller's line: the places that are described and when those who stand there arrived, oldest first.
local mine = { count = waiting, places = {}, arrivals = {} }
for i = 1, points do
  local place, age = argument(), argument()
  if not place or not age then return fail('age') end
  mine.places[i], mine.arrivals[i] = place, now - age
end

-- When the one at a place (from 0) of a line arrived, between two points by interpolation.
local function arrival(line, place)
  local places, arrivals = line.places, line.arrivals
  for i = #places, 2, -1 do
    if places[i] <= place then return arrivals[i] end
    if places[i - 1] <= place then
      return arrivals[i - 1] + (arrivals[i] - arrivals[i - 1]) * ((place - places[i - 1]) / (places[i] - places[i - 1]))
    end
  end
  return arrivals[1]
end

-- How many of a line arrived before an instant.
local function older(line, instant)
  local places, arrivals = line.places, line.arrivals
  if arrivals[1] >= instant then return 0 end
  if arrivals[#arrivals] < instant then return line.count end
  for i = #places - 1, 1, -1 do
    if arrivals[i] < instant then
      local part = (instant - arrivals[i]) / (arrivals[i + 1] - arrivals[i])
      return math.floor(1 + places[i] + part * (places[i + 1] - places[i]))
    end
  end
  return 0
end

-- The kinds of limit. `read` settles what is stored to now; `at` is the first instant from t on that suits so many units,
-- and suits itself; `take` spends the cost at an instant; `write` lists the fields to store; `level` is what the caller is told.
local kinds = { b = {}, w = {}, c = {} }

function kinds.b.arguments(limit)
  limit.interval, limit.capacity, limit.start = argument(), argument(), argument()
  limit.witness, limit.recover = argument(), argument()
  return limit.interval and limit.capacity and limit.start and limit.witness and limit.recover and limit.interval > 0
    and limit.capacity >= cost
end
function kinds.b.fields(i)
  return { 'full_at.' .. i, 'pace.' .. i, 'interval.' .. i, 'capacity.' .. i, 'asserted.' .. i, 'rate.' .. i, 'rate_at.' .. i }
end
function kinds.b.read(limit, stored, bucket)
  local full_at, pace, interval, capacity = stored(1), stored(2), stored(3), stored(4)
  local asserted, rate, rate_at = stored(5), stored(6) or 1, stored(7)
  -- Of two configurations the stricter holds, so that an old instance cannot undo a reload; a looser one once nobody
  -- asserts the stricter any more.
  limit.asserted = now
  if interval and capacity and asserted and asserted + bucket.shift + ASSERTED > now
    and (interval > limit.interval or capacity < limit.capacity) then
    limit.interval = math.max(interval, limit.interval)
    limit.capacity = math.max(math.min(capacity, limit.capacity), cost)
    limit.asserted = asserted + bucket.shift
  end
  -- An adaptive limit regains its rate by use.
  if limit.recover > 0 and rate < 1 then
    rate_at = (rate_at or now) + bucket.shift
    if waiting > 0 and now >= rate_at + 1000000 then
      rate, rate_at = math.min(1, rate + limit.recover), now
    end
    limit.rate, limit.rate_at = rate, rate_at
  else
    rate = 1
  end
  limit.pace = limit.interval / rate
  if not (full_at and pace) then
    full_at = limit.start == 1 and now or now + limit.capacity * limit.pace
  else
    full_at = full_at + bucket.shift
    -- A new rate keeps the units that were spent, not the time they took at the old one.
    if pace ~= limit.pace then full_at = now + (full_at - now) * limit.pace / pace end
  end
  -- No honest debt is larger: what lies above is a clock's or a former capacity's doing.
  local ceiling = bucket.paused + (limit.capacity + cost) * limit.pace + horizon
  full_at = math.max(now, math.min(full_at, ceiling), now + limit.witness)
  if bucket.heals then
    -- While the store was lost the bucket refilled for no one: as of the return, it holds what it held at the loss, less
    -- a burst of each instance. One that is new may have been spent.
    local spent, most = outage + instances * cost * limit.pace, (limit.capacity - cost) * limit.pace
    if not stored(1) then spent = most end
    full_at = math.max(full_at, outage_at + math.min(math.max(0, full_at - outage_at) + spent, most))
  end
  limit.full_at = full_at
end
function kinds.b.at(limit, t, units)
  return math.max(t, limit.full_at - (limit.capacity - units) * limit.pace)
end
function kinds.b.take(limit, slot)
  limit.full_at = math.max(limit.full_at, slot) + cost * limit.pace
end
function kinds.b.write(limit, i, put)
  put('full_at.' .. i, limit.full_at)
  put('pace.' .. i, limit.pace)
  put('interval.' .. i, limit.interval)
  put('capacity.' .. i, limit.capacity)
  put('asserted.' .. i, limit.asserted)
  if limit.rate then
    put('rate.' .. i, limit.rate)
    put('rate_at.' .. i, limit.rate_at)
  end
  return limit.full_at
end
function kinds.b.level(limit) return limit.full_at - now, limit.pace end

function kinds.w.arguments(limit)
  limit.count, limit.per, limit.margin = argument(), argument(), argument()
  limit.clock, limit.witness = argument(), argument()
  return limit.count and limit.per and limit.margin and limit.clock and limit.witness and limit.count >= cost
    and limit.per > 2 * limit.margin
end
function kinds.w.fields(i) return { 'log.' .. i, 'window.' .. i, 'used.' .. i } end
function kinds.w.read(limit, stored, bucket)
  local seen_at = now - witness_age
  -- What the instances may have sent on their own while the store was lost.
  local sent = math.ceil(limit.count * math.min(1, outage / limit.per)) + instances * cost
  if limit.clock == 1 then
    limit.start, limit.used = stored(2), stored(3)
    if limit.start and limit.used then
      -- Windows are the clock's own: one that goes back begins a former window anew.
      if limit.start > now + limit.per then limit.start = math.floor(now / limit.per) * limit.per end
    else
      limit.start, limit.used = math.floor(seen_at / limit.per) * limit.per, limit.witness
    end
    local start = math.floor(now / limit.per) * limit.per
    if bucket.heals and outage_at >= start then
      local used = limit.start == start and limit.used or 0
      if limit.start <= start then limit.start, limit.used = start, math.max(used, math.min(used + sent, limit.count - cost)) end
    end
    return
  end
  -- Pairs of an instant and the units taken at or just before it, oldest first.
  local log, packed = {}, stored(1, true)
  if packed then
    for i = 1, #packed - 15, 16 do
      local at, units = struct.unpack('<dd', packed, i)
      at = at + bucket.shift
      if at + limit.per + limit.margin > now then
        log[#log + 1] = at
        log[#log + 1] = units
      end
    end
  elseif limit.witness > 0 and witness_age < limit.per then
    log[1], log[2] = seen_at + horizon, limit.witness
  end
  limit.log, limit.used, limit.resumes = log, 0, bucket.resumes
  for i = 2, #log, 2 do limit.used = limit.used + log[i] end
  if bucket.heals and outage_at + limit.per + limit.margin > now then
    local units = math.min(sent, limit.count - cost - limit.used)
    if units > 0 then kinds.w.put(limit, outage_at, units) end
  end
end
function kinds.w.at(limit, t, units)
  -- Whole windows that more than one window's worth takes.
  local whole = math.floor((units - 1) / limit.count)
  units = units - whole * limit.count
  if limit.clock == 1 then
    local start = math.max(math.floor(now / limit.per) * limit.per, limit.start)
    if start == limit.start and limit.used + units > limit.count then start = start + limit.per end
    local at = math.max(t, start + whole * limit.per + limit.margin)
    start = math.floor(at / limit.per) * limit.per
    if at < start + limit.margin then return start + limit.margin end
    if at > start + limit.per - limit.margin then return start + limit.per + limit.margin end
    return at
  end
  local at, used, log = now, limit.used, limit.log
  for i = 1, #log, 2 do
    if used + units <= limit.count then break end
    used = used - log[i + 1]
    at = log[i] + limit.per + limit.margin
  end
  at = at + whole * (limit.per + limit.margin)
  -- In the first window after a pause units are spaced evenly: the OTA has just said that it was too much.
  if limit.resumes and t < limit.resumes + limit.per then
    local since = units - cost
    for i = 1, #log, 2 do
      if log[i] >= limit.resumes then since = since + log[i + 1] end
    end
    at = math.max(at, limit.resumes + since * limit.per / limit.count)
  end
  return math.max(t, at)
end
function kinds.w.take(limit, slot)
  if limit.clock == 1 then
    local start = math.floor(slot / limit.per) * limit.per
    if start > limit.start then limit.start, limit.used = start, 0 end
    limit.used = limit.used + cost
    return
  end
  kinds.w.put(limit, slot, cost)
end
function kinds.w.put(limit, slot, units)
  local log = limit.log
  limit.used = limit.used + units
  local last = #log - 1
  -- With many entries, neighbours are one: all taken at the latest, so that none is forgotten too early.
  if #log >= 2 * ENTRIES and slot >= log[last] and slot - log[last] <= limit.per / ENTRIES then
    log[last], log[last + 1] = slot, log[last + 1] + units
    return
  end
  local place = #log + 1
  while place > 1 and log[place - 2] > slot do place = place - 2 end
  table.insert(log, place, slot)
  table.insert(log, place + 1, units)
end
function kinds.w.write(limit, i, put)
  if limit.clock == 1 then
    put('window.' .. i, limit.start)
    put('used.' .. i, limit.used)
    return limit.start + limit.per
  end
  local packed = {}
  for entry = 1, #limit.log, 2 do packed[#packed + 1] = struct.pack('<dd', limit.log[entry], limit.log[entry + 1]) end
  put('log.' .. i, table.concat(packed))
  return now + limit.per
end
function kinds.w.level(limit)
  local used = limit.used
  if limit.clock == 1 and math.floor(now / limit.per) * limit.per > limit.start then used = 0 end
  return used, kinds.w.at(limit, now, cost) - now
end

function kinds.c.arguments(limit)
  limit.most = argument()
  return limit.most
end
function kinds.c.fields() return {} end
function kinds.c.read(limit, stored, bucket)
  limit.others, limit.gone, limit.cut, limit.before = 0, {}, {}, 0
  local hold, known = 0, false
  local leases = redis.call('HGETALL', bucket.leases)
  for i = 1, #leases, 2 do
    if leases[i] == 'hold' then
      hold = tonumber(leases[i + 1]) or 0
    else
      local count, expires = 0, 0
      if #leases[i + 1] == 16 then count, expires = struct.unpack('<dd', leases[i + 1]) end
      if leases[i] == lane then
        limit.before, known = count, expires > now
      elseif expires > now then
        limit.others = limit.others + count
        -- No honest lease is longer: the clock went back.
        if expires > now + LEASE then limit.cut[leases[i]] = struct.pack('<dd', count, now + LEASE) end
      else
        limit.gone[#limit.gone + 1] = leases[i]
      end
    end
  end
  -- The store forgot a lease, or its clock leapt past it: so it may be with all. Nothing new until every lane has said what
  -- it holds.
  if registered == 1 and not known then
    hold = now + LEASE / 3
    limit.hold = hold
  end
  limit.free = hold > now and hold <= now + LEASE and 0 or limit.most - limit.others - held
end
function kinds.c.at(limit, t) return t end
function kinds.c.take() end
function kinds.c.write() return now end
function kinds.c.level(limit) return limit.others + held, 0 end

-- Read the arguments of every limit, then what is stored, and settle it to now.
local buckets, limits, pause, key = {}, {}, 0, 0
while cursor < #ARGV do
  local count = argument()
  if not count then return fail('bucket') end
  key = key + 1
  local bucket = { key = KEYS[key], limits = {}, fields = { 'seen', 'pause_until', 'healed' } }
  for i = 1, count do
    local kind = kinds[word() or '']
    local limit = { kind = kind }
    if not kind or not kind.arguments(limit) then return fail('limit') end
    if kind == kinds.c then
      key = key + 1
      bucket.leases = KEYS[key]
    end
    limit.first = #bucket.fields
    for _, field in ipairs(kind.fields(i)) do bucket.fields[#bucket.fields + 1] = field end
    bucket.limits[i] = limit
    limits[#limits + 1] = limit
  end
  buckets[#buckets + 1] = bucket
end
local line = KEYS[key + 1]
if not line or key + 1 ~= #KEYS then return fail('keys') end

for _, bucket in ipairs(buckets) do
  local values = redis.call('HMGET', bucket.key, unpack(bucket.fields))
  -- A clock that went back takes every instant with it, or the bucket would stall for as long.
  bucket.shift = math.min(0, now - (tonumber(values[1]) or now))
  -- The first claim after an outage puts it right, once for the fleet.
  bucket.heals = outage_at > 0 and outage_at <= now and tonumber(values[3]) ~= outage_at
  local paused = tonumber(values[2])
  bucket.resumes = paused and paused + bucket.shift
  bucket.paused = math.max(now, bucket.resumes or now)
  pause = math.max(pause, bucket.paused)
  for _, limit in ipairs(bucket.limits) do
    limit.kind.read(limit, function(n, raw)
      local value = values[limit.first + n]
      if raw then return value end
      return tonumber(value)
    end, bucket)
  end
end

-- The other lanes that wait, as long as they keep their promise to ask again.
local others, others_waiting, oldest, broken = {}, 0, math.huge, {}
local entries = redis.call('HGETALL', line)
for i = 1, #entries, 2 do
  if entries[i] ~= lane then
    local packed = entries[i + 1]
    local promised, count, points = 0, 0, 0
    if #packed >= 40 then promised, count, points = struct.unpack('<ddd', packed) end
    if promised + GRACE < now or promised > now + 3600000000 or #packed ~= 24 + 16 * points then
      broken[#broken + 1] = entries[i]
    else
      local other, numbers = { count = count, places = {}, arrivals = {} }, { struct.unpack('<' .. string.rep('dd', points), packed, 25) }
      for point = 1, points do
        other.places[point], other.arrivals[point] = numbers[2 * point - 1], numbers[2 * point]
      end
      others[#others + 1] = other
      others_waiting = others_waiting + count
      oldest = math.min(oldest, other.arrivals[1])
    end
  end
end

-- The first instant from t on that suits every limit: each may move it on, so they are asked until none does.
local function first_instant(t, units)
  for _ = 1, ROUNDS do
    local at = t
    for _, limit in ipairs(limits) do t = limit.kind.at(limit, t, units) end
    if t == at then break end
  end
  return t
end

-- Grant.
local slots, next_at = {}, now
local served, most, turn_known = 0, math.min(waiting, MOST_SLOTS), true
while served < most do
  local ahead, me = 0, arrival(mine, served)
  for _, other in ipairs(others) do ahead = ahead + older(other, me) end
  -- Whoever waits for the end of another request waits in order of age, and is woken.
  local free = math.huge
  for _, limit in ipairs(limits) do free = math.min(free, limit.free or math.huge) end
  if served + ahead >= free then
    next_at, turn_known = now + horizon, false
    break
  end
  local slot = first_instant(math.max(now, pause), cost)
  local turn, yields = slot, slot > now + rtt and ahead > 0
  if yields then turn = first_instant(math.max(now, pause), cost * (1 + ahead)) end
  if turn > now + horizon then
    next_at = math.max(turn - lead, now + 2 * rtt)
    break
  end
  -- Within the horizon order is that of the calls, but nobody goes before one that is older by much.
  if yields and me - oldest > horizon / 2 then
    next_at = math.max(turn - lead, now + horizon / 4)
    break
  end
  for _, limit in ipairs(limits) do limit.kind.take(limit, slot) end
  served = served + 1
  slots[served] = slot - now
end

-- Whoever is behind others asks again in time to notice that they are gone; while a bucket is paused nobody goes. First in
-- line, its own turn is exact.
if served < most and turn_known then
  local from = math.max(now, pause)
  local heads, me, spacing = 0, arrival(mine, served), 0
  for _, other in ipairs(others) do
    if other.arrivals[1] < me then heads = heads + 1 end
  end
  for _, limit in ipairs(limits) do spacing = math.max(spacing, cost * (limit.pace or 0)) end
  if heads == 1 then
    next_at = math.min(next_at, from + math.max(1000000, spacing))
  elseif heads > 1 then
    next_at = math.min(next_at, from + math.max(4000000, 4 * spacing))
  end
end

-- Write.
local freed = false
for _, bucket in ipairs(buckets) do
  local fields, longest = { 'seen', now }, bucket.paused
  if bucket.heals then fields = { 'seen', now, 'healed', outage_at } end
  local function put(field, value)
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  for i, limit in ipairs(bucket.limits) do
    longest = math.max(longest, limit.kind.write(limit, i, put))
    if limit.kind == kinds.c then
      for _, gone in ipairs(limit.gone) do redis.call('HDEL', bucket.leases, gone) end
      for other, lease in pairs(limit.cut) do redis.call('HSET', bucket.leases, other, lease) end
      if limit.hold then redis.call('HSET', bucket.leases, 'hold', limit.hold) end
      if held + served > 0 then
        redis.call('HSET', bucket.leases, lane, struct.pack('<dd', held + served, now + LEASE))
      else
        redis.call('HDEL', bucket.leases, lane)
      end
      redis.call('PEXPIRE', bucket.leases, 2 * LEASE / 1000)
      freed = freed or held + served < limit.before or #limit.gone > 0
    end
  end
  if bucket.resumes then put('pause_until', bucket.resumes) end
  redis.call('HSET', bucket.key, unpack(fields))
  redis.call('PEXPIRE', bucket.key, math.ceil((longest - now) / 1000) + KEEP)
end
for _, gone in ipairs(broken) do redis.call('HDEL', line, gone) end
local left = waiting - served
if left > 0 then
  local rest = { 0, arrival(mine, served) }
  for i = 1, points do
    if mine.places[i] > served then
      rest[#rest + 1] = mine.places[i] - served
      rest[#rest + 1] = mine.arrivals[i]
    end
  end
  redis.call('HSET', line, lane,
    struct.pack('<ddd' .. string.rep('d', #rest), next_at, left, #rest / 2, unpack(rest)))
  redis.call('PEXPIRE', line, math.ceil((next_at - now) / 1000) + KEEP)
else
  redis.call('HDEL', line, lane)
end
-- Where an ACL forbids to publish, the claim stands all the same, and who waits for the place asks within a horizon.
if freed and others_waiting > 0 then redis.pcall('PUBLISH', channel, 'wake ' .. line) end

local older_waiting = 0
for _, other in ipairs(others) do older_waiting = older_waiting + older(other, now) end
local reply = { math.ceil(next_at - now), math.ceil(pause - now), others_waiting, older_waiting }
for _, limit in ipairs(limits) do
  local level, more = limit.kind.level(limit)
  reply[#reply + 1] = math.ceil(level)
  reply[#reply + 1] = math.ceil(more)
end
for _, slot in ipairs(slots) do reply[#reply + 1] = math.ceil(slot) end
return reply
