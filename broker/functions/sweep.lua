-- sweep: take back the jobs of lost workers; promote, expire and collect what is due. Any worker may call it at any time.
-- ARGS: limit (of jobs moved and lost workers in one call; SWEEP_MAX at most); per worker known to be gone: name
-- REPLY: requeued, dead, expired, cancelled, promoted, collected, number of lost workers, number of blobs, records that were gone,
--        more ('1': the limit was met, so call again); then the lost workers' names; then the blobs to delete; then the changes
--        (see `tell`)
-- LARGEST: SWEEP_MAX jobs moved, as many lost workers, as many suspects looked at; looks once at each line
-- D18: docs/design/store.md
local SWEEP_MAX = 1000
local FEW_VERSIONS = 8
local HOLD_MS = 60000 -- a record that an extension still needs is looked at again after this, or later if it says so

local function swept(tally, what)
  tally[what], tally.left = tally[what] + 1, tally.left - 1
end

-- `event` numbers the sweeps that found lost workers. A job that the event before hit as well has lost workers in a row.
local function take_back(p, serial, worker, event, now, todo, tally)
  local job = load_job(p, serial, ENDING)
  if not job.state then
    forget_gone(p, serial, todo)
    return swept(tally, 'gone')
  end
  if job.state ~= 'leased' or job.worker ~= worker then return end
  note_past(p, serial, job, now, 'worker_lost')
  tell(todo, 'lost', serial, 'leased', job)
  if job.cancel == '1' then
    cancel_job(p, serial, job, now, todo)
    return swept(tally, 'cancelled')
  end
  job.losses = job.losses + 1
  job.in_a_row = tonumber(job.lost_in or 0) == event - 1 and job.in_a_row + 1 or 1 -- guard:in_a_row
  note(job, 'losses', job.losses, 'in_a_row', job.in_a_row, 'lost_in', event)
  local row_over = job.in_a_row >= MAX_LOST_IN_A_ROW -- guard:losses_in_a_row
  if row_over or job.losses >= MAX_LOSSES then -- guard:losses
    kill_job(p, serial, job, now, todo, 'worker_lost', 'given up: ' .. job.losses .. ' workers were lost while they held it')
    swept(tally, 'dead')
  elseif tonumber(job.deadline) <= now then
    expire_job(p, serial, job, now, todo)
    swept(tally, 'expired')
  else
    set_state(p, serial, job, 'queued', todo) -- guard:sweep_token
    requeue(p, serial, job)
    count(todo, 'redelivered:worker_lost', 1)
    swept(tally, 'requeued')
  end
end

-- Up to `limit` workers whose lease has passed or who are known to be gone.
local function lost_workers(p, gone, limit, now)
  local lost, named = {}, {}
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', p .. 'leases', '-inf', now, 'LIMIT', 0, limit)) do
    lost[#lost + 1], named[worker] = worker, true
  end
  for _, worker in ipairs(gone) do
    if #lost >= limit then break end
    if not named[worker] and redis.call('ZSCORE', p .. 'leases', worker) then lost[#lost + 1] = worker end
  end
  return lost
end

-- Take back what lost workers hold, as far as the limit goes. A worker keeps its lease until all its jobs are back: a sweep that
-- ends before goes on with the rest the next time.
local function lose_workers(p, gone, now, todo, tally)
  local held, lost = {}, {}
  for _, worker in ipairs(lost_workers(p, gone, tally.left, now)) do
    local serials = redis.call('HKEYS', p .. 'held:' .. worker)
    table.sort(serials)
    for i = 1, math.min(#serials, tally.left - #held) do held[#held + 1] = {serials[i], worker} end
    if #held >= tally.left then break end
    lost[#lost + 1] = worker
  end
  if #held > 0 then
    table.sort(held, function(a, b) return a[1] < b[1] end) -- the oldest job first, whichever worker held it
    local event = redis.call('HINCRBY', p .. 'counters', 'loss_events', 1)
    for _, job in ipairs(held) do
      take_back(p, job[1], job[2], event, now, todo, tally)
      later(todo, 'HDEL', p .. 'held:' .. job[2], job[1])
    end
  end
  -- A lease goes after what it holds, so that a call that fails in between is repeated.
  for _, worker in ipairs(lost) do later(todo, 'ZREM', p .. 'leases', worker) end
  return lost
end

local function promote(p, now, todo, tally)
  for _, serial in ipairs(redis.call('ZRANGEBYSCORE', p .. 'delayed', '-inf', now, 'LIMIT', 0, tally.left)) do
    local job = load_job(p, serial, ENDING)
    redis.call('ZREM', p .. 'delayed', serial)
    if not job.state then
      forget_gone(p, serial, todo)
      swept(tally, 'gone')
    elseif job.state ~= 'delayed' then tally.left = tally.left - 1
    elseif tonumber(job.deadline) <= now then
      expire_job(p, serial, job, now, todo)
      count_start(p, serial, todo)
      swept(tally, 'expired')
    else
      set_state(p, serial, job, 'queued', todo)
      count_start(p, serial, todo)
      requeue(p, serial, job)
      swept(tally, 'promoted')
    end
  end
end

local function add_late(late, key, band, found)
  for _, serial in ipairs(found) do late[#late + 1] = {serial, key, band} end
end

-- Add the late suspects of a version. They are not in the order of their deadlines, so `solo_due` says when to
-- look at them all.
local function add_late_suspects(p, version, now, late)
  local solo, due = p .. 'solo:' .. version, redis.call('HGET', p .. 'solo_due', version)
  if not due or tonumber(due) > now then return end
  local page, next = redis.call('ZRANGE', solo, 0, SWEEP_MAX - 1), nil
  for _, serial in ipairs(page) do
    local deadline = tonumber(redis.call('HGET', p .. 'job:' .. serial, 'deadline') or 0)
    if deadline <= now then late[#late + 1] = {serial, solo, 0} end
    next = math.min(next or deadline, deadline)
  end
  if #page == SWEEP_MAX then next = now end -- there may be more
  if next then redis.call('HSET', p .. 'solo_due', version, next) else redis.call('HDEL', p .. 'solo_due', version) end
end

-- The versions that have waiting jobs, and few others: where there are many, those for which nothing waits are forgotten, because
-- each costs every look at the queue.
local function waiting_versions(p)
  local versions = redis.call('SMEMBERS', p .. 'versions')
  if #versions <= FEW_VERSIONS then return versions end
  local waiting = {}
  for _, version in ipairs(versions) do
    if is_waited_for(p, version) then waiting[#waiting + 1] = version
    elseif redis.call('EXISTS', offers_of(p, version)) == 0 then redis.call('SREM', p .. 'versions', version) end -- guard:offered
  end
  return waiting
end

local function expire_waiting(p, now, todo, tally)
  local late, limit = {}, tally.left
  for _, version in ipairs(waiting_versions(p)) do
    for _, line in ipairs(all_lines_of(p, version)) do
      for _, band in ipairs(BANDS) do
        if #late >= limit then break end
        local from = band * WEIGHT
        add_late(late, line, band, redis.call('ZRANGEBYSCORE', line, from, from + now, 'LIMIT', 0, limit - #late))
      end
    end
    add_late_suspects(p, version, now, late)
  end
  for _, entry in ipairs(late) do
    if tally.left <= 0 then break end
    local serial, key, band = entry[1], entry[2], entry[3]
    local job = load_job(p, serial, ENDING)
    local gone, waits = not job.state, job.state == 'queued'
    if not waits or tonumber(job.deadline) <= now then
      redis.call('ZREM', key, serial)
      pop_tickets(p, band, 1)
      if gone then forget_gone(p, serial, todo) elseif waits then expire_job(p, serial, job, now, todo) end
      if gone or waits then swept(tally, gone and 'gone' or 'expired') else tally.left = tally.left - 1 end
    end
  end
end

local function collect(p, now, todo, tally)
  local blobs = {}
  for _, serial in ipairs(redis.call('ZRANGEBYSCORE', p .. 'final', '-inf', now, 'LIMIT', 0, math.max(0, tally.left))) do
    local refs, owner, kept = drop_job(p, serial, todo)
    if refs then
      append(blobs, refs)
      -- A tombstone lives as long as the result was kept. A day for each answer-now request would take gigabytes at a few
      -- thousand requests a second.
      redis.call('SET', p .. 'tomb:' .. serial, owner, 'PX', math.min(TOMB_MAX_MS, math.max(TOMB_MIN_MS, kept)))
      swept(tally, 'collected')
    else
      redis.call('ZADD', p .. 'final', 'GT', now + HOLD_MS, serial)
      tally.left = tally.left - 1
    end
  end
  return blobs
end

local function sweep(keys, args, todo)
  local p, now = keys[1], now_ms()
  local tally = {requeued = 0, dead = 0, expired = 0, cancelled = 0, promoted = 0, collected = 0, gone = 0}
  tally.left = math.min(SWEEP_MAX, tonumber(args[1]))
  local gone = {}
  for i = 2, math.min(#args, 1 + SWEEP_MAX) do gone[#gone + 1] = args[i] end
  local lost = lose_workers(p, gone, now, todo, tally)
  promote(p, now, todo, tally)
  expire_waiting(p, now, todo, tally)
  local blobs = collect(p, now, todo, tally)
  local changes = todo.changes
  flush(p, todo)
  if tally.requeued + tally.promoted > 0 then wake(p) end
  local reply = {tally.requeued, tally.dead, tally.expired, tally.cancelled, tally.promoted, tally.collected, #lost, #blobs,
    tally.gone, tally.left <= 0 and '1' or ''}
  append(reply, lost)
  append(reply, blobs)
  append(reply, changes)
  return reply
end

register('sweep', sweep, {'allow-oom'})
