-- The places of a waiting job: its line, its ticket, its owner's turn; and the wake-up of slots that wait for jobs.

local function push_tickets(p, band, n)
  local new = {}
  for i = 1, n do new[i] = TICKET end
  send('LPUSH', tickets(p, band), new)
end

-- Remove the last n entries of a ticket list; returns how many were tickets. Others may write to these lists too, and
-- extensions are shown what is no ticket.
local function draw(p, band, n)
  local drawn = 0
  for _, entry in ipairs(redis.call('RPOP', tickets(p, band), n) or {}) do
    if entry == TICKET then drawn = drawn + 1 else hooks.drawn(p, entry) end
  end
  return drawn
end

-- Remove n tickets. However many other entries stand before them, only n are looked at here.
local function pop_tickets(p, band, n)
  local missing = n - draw(p, band, n)
  if missing > 0 then redis.call('LREM', tickets(p, band), -missing, TICKET) end
end

-- Since when a job waits in the queue, and whether it had a delay before; nil if its record is gone.
local function waits_since(p, serial)
  local created, not_before = unpack(redis.call('HMGET', p .. 'job:' .. serial, 'created', 'not_before'))
  return tonumber(not_before or created), not_before
end

local function band_of(score) return math.floor(score / WEIGHT) end

local function line_of(p, version, owner, call)
  if call == 'shard' then return shards_of(p, version) end -- guard:shard_line
  if not owner or owner == '' then return p .. 'ready:' .. version end
  return p .. 'ready:' .. version .. ':' .. owner
end

local function turns_of(p, version, band) return p .. 'turns:' .. version .. ':' .. band end

local function offers_of(p, version) return p .. 'offers:' .. version end

-- Whether the queue takes no jobs of this version.
local function is_retired(p, version)
  if redis.call('EXISTS', p .. 'retired') == 0 then return false end
  return redis.call('ZSCORE', p .. 'retired', version) or redis.call('ZSCORE', p .. 'retired', '')
end

local function drop_offer(p, args) return redis.call('HDEL', offers_of(p, args[1]), args[2]) end

-- Wake the slots if the queue has the length that an idle slot asked for, or if shards came: only a wake-up tells slots of shards.
local function wake(p, shards_came)
  local want = redis.call('GET', p .. 'want')
  local due = want and ordinary_depth(p) >= tonumber(want) -- guard:want
  if due then redis.call('DEL', p .. 'want') end
  if due or shards_came then redis.call('SPUBLISH', p .. 'wake', 'w') end
end

-- Give the owner the last turn, unless the owner has one. Returns whether there was none.
local function take_turn(p, version, band, owner)
  local turns = turns_of(p, version, band)
  local last = redis.call('ZRANGE', turns, -1, -1, 'WITHSCORES')[2] or 0
  return redis.call('ZADD', turns, 'NX', last + 1, owner) == 1
end

local function enqueue(p, serial, job)
  local band = tonumber(job.band)
  redis.call('ZADD', line_of(p, job.version, job.owner, job.call), band * WEIGHT + job.deadline, serial)
  if job.call ~= 'shard' and job.owner and job.owner ~= '' then take_turn(p, job.version, band, job.owner) end
  redis.call('SADD', p .. 'versions', job.version)
  push_tickets(p, band, 1)
  if job.call == 'shard' then wake(p, true) end
end

-- A suspect that lost workers goes behind all other suspects: at the head of the line it would also be the first to meet the next
-- loss.
local function enqueue_solo(p, serial, job)
  local place = job.created
  if job.losses > 0 then place = WEIGHT + (redis.call('HGET', p .. 'counters', 'solo_clock:' .. job.version) or 0) end -- guard:solo_place
  local due = redis.call('HGET', p .. 'solo_due', job.version)
  if not due or tonumber(job.deadline) < tonumber(due) then redis.call('HSET', p .. 'solo_due', job.version, job.deadline) end
  redis.call('ZADD', p .. 'solo:' .. job.version, place, serial)
  redis.call('SADD', p .. 'versions', job.version)
  push_tickets(p, 0, 1)
end

-- Queue a job again after a lease or a delay. A job that crashed once or lost workers twice is a suspect and runs alone.
local function requeue(p, serial, job)
  if job.crashes > 0 or job.losses >= SUSPECT_LOSSES then
    enqueue_solo(p, serial, job)
  else
    enqueue(p, serial, job)
  end
end

-- Take a waiting job out of ready, solo or delayed; returns the one it was found in, or nil.
local function dequeue(p, serial, job)
  local line = line_of(p, job.version, job.owner, job.call)
  local score = redis.call('ZSCORE', line, serial)
  if score then
    redis.call('ZREM', line, serial)
    pop_tickets(p, band_of(tonumber(score)), 1)
    return 'ready'
  end
  if redis.call('ZREM', p .. 'solo:' .. job.version, serial) == 1 then
    pop_tickets(p, 0, 1)
    return 'solo'
  end
  if redis.call('ZREM', p .. 'delayed', serial) == 1 then return 'delayed' end
end

local NAMES_AT_ONCE = 1000 -- Lua passes at most about 8,000 values to one command

-- Those of these slots whose own channel has no subscriber: their process has ended, or lost its link a moment ago.
local function without_subscriber(p, workers)
  local missing = {}
  for from = 1, #workers, NAMES_AT_ONCE do
    local channels = {}
    for i = from, math.min(from + NAMES_AT_ONCE - 1, #workers) do channels[#channels + 1] = p .. 'worker:' .. workers[i] end
    local subscribers = redis.call('PUBSUB', 'SHARDNUMSUB', unpack(channels))
    for i = 2, #subscribers, 2 do
      if tonumber(subscribers[i]) == 0 then missing[#missing + 1] = workers[from + i / 2 - 1] end
    end
  end
  return missing
end
