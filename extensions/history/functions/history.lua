-- What a model did over the last days, in steps: counted at the beats of workers and gateways. Percentiles come from
-- histograms that add up, so any number of workers and gateways may write. All moments are of this clock.
--   history           string  the open step of each length, what was counted when it was noted last, and who wrote lately; packed
--   history:<length>  list    closed steps of this length in seconds, newest first, each packed
-- A step: its start in s; sums; highest values; histogram of total times; histogram of queue times; grain. Sums, highest values and
-- buckets are numbered as in extensions/history/store.py.
-- D118: docs/design/store.md

local LENGTHS = {10, 60, 300, 1800}
local KEPT = {360, 360, 288, 336} -- an hour, 6 hours, a day, a week
local PACKED_MAX = 172 -- bytes of a closed step: with it a model takes at most 250 KB
local GRAIN_MAX = 5
local KEEP_MS = 8 * 86400000
local SAMPLE_MS = 4000 -- the counters and the queue are read once in this time for all writers
local WRITER_MS = 900000 -- for this long a write that comes again is known
local WRITERS_MAX = 4096
local COUNTERS = {'accepted', 'ended:succeeded', 'ended:failed', 'ended:dead', 'ended:cancelled', 'ended:expired'}
local SUM_OF_COUNTER = {2, 3, 4, 4, 5, 6}
local COVERED = 1
local WAITING, OLDEST, RUNNING, SLOTS, WORKERS, MEMORY = 1, 2, 3, 4, 5, 6

local function add_to(sums, more)
  for number, value in pairs(more) do sums[number] = (sums[number] or 0) + value end
end

local function raise_to(tops, more)
  for number, value in pairs(more) do tops[number] = math.max(tops[number] or 0, value) end
end

-- A histogram with buckets that are 2^grain times as wide: each then holds what several did.
local function coarser(buckets, grain)
  local wider, width = {}, 2 ^ grain
  for number, count in pairs(buckets) do
    local first = number - number % width
    wider[first] = (wider[first] or 0) + count
  end
  return wider
end

local function coarsen(step, grain)
  if grain > step[6] then
    step[4], step[5], step[6] = coarser(step[4], grain), coarser(step[5], grain), grain
  end
end

local function merge_step(into, step)
  local grain = math.max(into[6], step[6])
  coarsen(into, grain)
  add_to(into[2], step[2])
  raise_to(into[3], step[3])
  add_to(into[4], coarser(step[4], grain))
  add_to(into[5], coarser(step[5], grain))
end

-- A step of many different times loses resolution rather than take more memory than its place.
local function keep_step(p, level, step)
  local packed = cmsgpack.pack(step)
  while #packed > PACKED_MAX and step[6] < GRAIN_MAX do
    coarsen(step, step[6] + 1)
    packed = cmsgpack.pack(step)
  end
  local key = p .. 'history:' .. LENGTHS[level]
  for _ = KEPT[level], redis.call('LPUSH', key, packed) - 1 do redis.call('RPOP', key) end
  redis.call('PEXPIRE', key, KEEP_MS)
end

-- The step of this length that a moment in s belongs to. One that is over is closed, and adds to the next longer one.
local function step_at(p, state, level, at)
  local start, step = at - at % LENGTHS[level], state.open[level]
  if step and step[1] ~= start then
    keep_step(p, level, step)
    if LENGTHS[level + 1] then merge_step(step_at(p, state, level + 1, step[1]), step) end
    step = nil
  end
  if not step then
    step = {start, {}, {}, {}, {}, 0}
    state.open[level] = step
  end
  return step
end

local function load_history(p)
  local packed = redis.call('GET', p .. 'history')
  return packed and cmsgpack.unpack(packed) or {open = {}, noted = {}, writers = {}}
end

local function running(p)
  local held = 0
  for _, worker in ipairs(redis.call('ZRANGE', p .. 'leases', 0, -1)) do held = held + redis.call('HLEN', p .. 'held:' .. worker) end
  return held
end

-- By how much the counters grew since any writer last noted them, and over what time (0 if the clock was set back).
-- Counters that shrank are those of another store, and the first call has nothing to compare with.
local function note_counters(p, state, step, now)
  local counted, before = redis.call('HMGET', p .. 'counters', unpack(COUNTERS)), state.noted
  local known = before.at ~= nil
  for i = 1, #COUNTERS do
    counted[i] = tonumber(counted[i] or 0)
    known = known and counted[i] >= before[i]
  end
  if known then
    local grown = {[COVERED] = math.max(0, now - before.at)}
    for i = 1, #COUNTERS do
      local more = counted[i] - before[i]
      if more > 0 then grown[SUM_OF_COUNTER[i]] = (grown[SUM_OF_COUNTER[i]] or 0) + more end
    end
    add_to(step[2], grown)
  end
  state.noted = counted
  counted.at = now
end

local function note_queue(p, step, now)
  local waiting, tops = depth(p), {}
  if waiting > 0 then tops[WAITING], tops[OLDEST] = waiting, math.max(0, oldest_waiting(p, now)) end
  local held = running(p)
  if held > 0 then tops[RUNNING] = held end
  raise_to(step[3], tops)
end

-- The sum of what each writer last reported to have.
local function note_writers(state, step, now)
  local slots, workers, memory = 0, 0, 0
  for name, writer in pairs(state.writers) do
    writer[2] = math.min(writer[2], now) -- the clock may have been set back
    if now - writer[2] > WRITER_MS then
      state.writers[name] = nil
    elseif now - writer[2] <= writer[3] then
      slots, memory = slots + writer[4], memory + writer[5]
      if writer[4] > 0 then workers = workers + 1 end
    end
  end
  if workers > 0 then raise_to(step[3], {[SLOTS] = slots, [WORKERS] = workers, [MEMORY] = memory}) end
end

-- What a worker counted since its last write. A write that is repeated, because its reply was lost, has the same number.
local function note_written(state, step, now, args)
  local before = state.writers[args[1]]
  local said = {tonumber(args[2]), now, tonumber(args[3]), tonumber(args[4]), tonumber(args[5])}
  state.writers[args[1]] = said
  if before and before[1] == said[1] then return false end
  local sums, totals, waits = unpack(cmsgpack.unpack(args[6]))
  add_to(step[2], sums)
  add_to(step[4], coarser(totals, step[6]))
  add_to(step[5], coarser(waits, step[6]))
  return true
end

local function count_of(entries)
  local n = 0
  for _ in pairs(entries) do n = n + 1 end
  return n
end

-- note_history: add to the open step what happened since the last call of any writer, and what a worker counted.
-- ARGS: per write (of a worker; a gateway has none): worker, number of its write, ms until what it has counts no more, ready slots,
--       their memory in MiB, what it counted (sums, total times and queue times as histograms, packed)
-- REPLY: 1 (noted) | 0 (another writer did a moment ago, or the write was noted before)
-- LARGEST: one step of each length, and one look at the queue as `stats` has it
local function note_history(keys, args)
  local p, now = keys[1], now_ms()
  local state = load_history(p)
  local due = not state.noted.at or now - state.noted.at >= SAMPLE_MS or now < state.noted.at
  if #args == 0 and not due then return 0 end
  if #args > 0 and not state.writers[args[1]] and count_of(state.writers) >= WRITERS_MAX then
    return redis.error_reply('ERR more than ' .. WRITERS_MAX .. ' workers write the history of one queue')
  end
  local step, noted = step_at(p, state, 1, math.floor(now / 1000)), 1
  if #args > 0 and not note_written(state, step, now, args) then noted = 0 end
  if due then
    note_counters(p, state, step, now)
    note_queue(p, step, now)
    note_writers(state, step, now)
  end
  redis.call('SET', p .. 'history', cmsgpack.pack(state), 'PX', KEEP_MS)
  return noted
end

-- At the limit of memory the history yields to jobs: without allow-oom the call is refused, and the worker counts on.
-- unwaited: note_history, because it counts anew all the time
register('note_history', note_history, {})

-- history: the steps of one length, newest first.
-- ARGS: number of the length (from 1)
-- REPLY: now ms; the open steps of this and the shorter lengths, packed, longest first; then the closed ones, packed
-- LARGEST: as many steps as are kept of this length
local function history(keys, args)
  local p, level = keys[1], tonumber(args[1])
  local state, reply, open = load_history(p), {now_ms()}, {}
  for shorter = level, 1, -1 do
    if state.open[shorter] then open[#open + 1] = cmsgpack.pack(state.open[shorter]) end
  end
  reply[2] = open
  append(reply, redis.call('LRANGE', p .. 'history:' .. LENGTHS[level], 0, -1))
  return reply
end

register('history', history, {'no-writes', 'allow-stale'})
