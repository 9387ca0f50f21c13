-- sweep: take back the jobs of lost workers; promote, expire and collect what is due. Any worker may call it at any time.
-- ARGS: limit; per worker known to be gone: name
-- REPLY: requeued, dead, expired, cancelled, promoted, collected, number of lost workers, number of blobs; then the lost workers'
--        names; then the blobs to delete; then the changes (see `tell`)
-- D18: docs/design/store.md

-- `event` numbers the sweeps that found lost workers. A job that was hit by the event before as well has lost workers in a row.
local function take_back(p, serial, event, now, todo, tally)
  local job = load_job(p, serial, ENDING)
  if job.state ~= 'leased' then return end
  note_past(p, serial, now, 'worker_lost')
  tell(todo, 'lost', serial, 'leased', job)
  if job.cancel == '1' then
    cancel_job(p, serial, job, now, todo)
    tally.cancelled = tally.cancelled + 1
    return
  end
  job.losses = job.losses + 1
  job.in_a_row = tonumber(job.lost_in or 0) == event - 1 and job.in_a_row + 1 or 1 -- guard:in_a_row
  redis.call('HSET', p .. 'job:' .. serial, 'losses', job.losses, 'in_a_row', job.in_a_row, 'lost_in', event)
  local row_over = job.in_a_row >= MAX_LOST_IN_A_ROW -- guard:losses_in_a_row
  if row_over or job.losses >= MAX_LOSSES then -- guard:losses
    kill_job(p, serial, job, now, todo, 'worker_lost', 'given up: ' .. job.losses .. ' workers were lost while they held it')
    tally.dead = tally.dead + 1
  elseif tonumber(job.deadline) <= now then
    expire_job(p, serial, job, now, todo)
    tally.expired = tally.expired + 1
  else
    redis.call('HSET', p .. 'job:' .. serial, 'state', 'queued', 'token', '') -- guard:sweep_token
    requeue(p, serial, job)
    count(todo, 'redelivered:worker_lost', 1)
    tally.requeued = tally.requeued + 1
  end
end

local function lose_workers(p, gone, now, todo, tally)
  local lost, named = {}, {}
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', p .. 'leases', '-inf', now)) do
    lost[#lost + 1], named[worker] = worker, true
  end
  for _, worker in ipairs(gone) do
    if not named[worker] and redis.call('ZSCORE', p .. 'leases', worker) then lost[#lost + 1] = worker end
  end
  local held = {}
  for _, worker in ipairs(lost) do
    for _, serial in ipairs(redis.call('HKEYS', p .. 'held:' .. worker)) do held[#held + 1] = serial end
    redis.call('DEL', p .. 'held:' .. worker)
    redis.call('ZREM', p .. 'leases', worker)
  end
  if #held == 0 then return lost end
  table.sort(held) -- the oldest job first, whichever worker held it
  local event = redis.call('HINCRBY', p .. 'counters', 'loss_events', 1)
  for _, serial in ipairs(held) do take_back(p, serial, event, now, todo, tally) end
  return lost
end

local function promote(p, limit, now, todo, tally)
  for _, serial in ipairs(redis.call('ZRANGEBYSCORE', p .. 'delayed', '-inf', now, 'LIMIT', 0, limit)) do
    local job = load_job(p, serial, ENDING)
    redis.call('ZREM', p .. 'delayed', serial)
    if tonumber(job.deadline) <= now then
      expire_job(p, serial, job, now, todo)
      tally.expired = tally.expired + 1
    else
      redis.call('HSET', p .. 'job:' .. serial, 'state', 'queued')
      requeue(p, serial, job)
      tally.promoted = tally.promoted + 1
    end
  end
end

local function expire_waiting(p, limit, now, todo, tally)
  local late = {}
  for _, version in ipairs(redis.call('SMEMBERS', p .. 'versions')) do
    for _, line in ipairs(all_lines_of(p, version)) do
      for _, band in ipairs(BANDS) do
        local from = band * WEIGHT
        for _, serial in ipairs(redis.call('ZRANGEBYSCORE', line, from, from + now, 'LIMIT', 0, limit)) do late[#late + 1] = serial end
      end
    end
    for _, serial in ipairs(redis.call('ZRANGE', p .. 'solo:' .. version, 0, limit)) do late[#late + 1] = serial end
  end
  for _, serial in ipairs(redis.call('ZRANGE', p .. 'delayed', 0, limit)) do late[#late + 1] = serial end
  for _, serial in ipairs(late) do
    local job = load_job(p, serial, ENDING)
    if tonumber(job.deadline) <= now then
      dequeue(p, serial, job, now)
      expire_job(p, serial, job, now, todo)
      tally.expired = tally.expired + 1
    end
  end
end

local function collect(p, limit, now, todo, tally)
  local blobs = {}
  for _, serial in ipairs(redis.call('ZRANGEBYSCORE', p .. 'final', '-inf', now, 'LIMIT', 0, limit)) do
    local refs, owner, kept = drop_job(p, serial)
    append(blobs, refs)
    -- A tombstone lives as long as the result was kept. A day for each answer-now request would take gigabytes at a few
    -- thousand requests a second.
    redis.call('SET', p .. 'tomb:' .. serial, owner, 'PX', math.min(TOMB_MAX_MS, math.max(TOMB_MIN_MS, kept)))
    tally.collected = tally.collected + 1
  end
  count(todo, 'collected', tally.collected)
  return blobs
end

local function sweep(keys, args)
  local p, now, todo, limit = keys[1], now_ms(), {}, tonumber(args[1])
  local tally = {requeued = 0, dead = 0, expired = 0, cancelled = 0, promoted = 0, collected = 0}
  local gone = {}
  for i = 2, #args do gone[#gone + 1] = args[i] end
  local lost = lose_workers(p, gone, now, todo, tally)
  promote(p, limit, now, todo, tally)
  expire_waiting(p, limit, now, todo, tally)
  local blobs = collect(p, limit, now, todo, tally)
  local changes = todo.changes
  flush(p, todo)
  if tally.requeued + tally.promoted > 0 then wake(p) end
  local reply = {tally.requeued, tally.dead, tally.expired, tally.cancelled, tally.promoted, tally.collected, #lost, #blobs}
  append(reply, lost)
  append(reply, blobs)
  append(reply, changes)
  return reply
end

register('sweep', sweep, {'allow-oom'})
