-- reconcile: compare records with their indexes and mend what disagrees. Every count but `scanned` must stay 0.
-- ARGS: cursor ('0' starts), limit (RECONCILE_MAX at most)
-- REPLY: next cursor ('0' = done), scanned, mended orphans, tickets added or taken away, records that were gone
-- LARGEST: RECONCILE_MAX records, as many entries of lists; looks once at each line and at each slot that waits
local RECONCILE_MAX = 1000

local function has_place(p, serial, job)
  if job.state == 'queued' then
    return redis.call('ZSCORE', line_of(p, job.version, job.owner, job.call), serial)
      or redis.call('ZSCORE', p .. 'solo:' .. job.version, serial)
  end
  if job.state == 'delayed' then return redis.call('ZSCORE', p .. 'delayed', serial) end
  if job.state == 'leased' then
    return job.worker and redis.call('ZSCORE', p .. 'leases', job.worker) and redis.call('HEXISTS', p .. 'held:' .. job.worker, serial) == 1
  end
  return redis.call('ZSCORE', p .. 'final', serial)
end

-- Give the job's owner a turn if it has none, since its line would never be served. Returns whether it had none.
local function mend_turn(p, serial, job)
  if job.state ~= 'queued' or not job.owner or job.owner == '' or job.call == 'shard' then return false end
  local score = redis.call('ZSCORE', line_of(p, job.version, job.owner), serial)
  return score and take_turn(p, job.version, band_of(tonumber(score)), job.owner)
end

-- A leased job stands in no line, only a leased job is held, and a replayed one is not in the inbox. Returns whether the job was
-- where it must not be.
local function leave_wrong_place(p, serial, job)
  if (job.replayed_as or job.dismissed) and redis.call('ZREM', p .. 'inbox', serial) == 1 then return true end
  if job.state ~= 'leased' then
    return job.worker and redis.call('HDEL', p .. 'held:' .. job.worker, serial) == 1
  end
  return redis.call('ZREM', line_of(p, job.version, job.owner, job.call), serial) == 1
    or redis.call('ZREM', p .. 'solo:' .. job.version, serial) == 1
end

-- Give a job back its place. A final one that lacks its own was not counted either.
local function give_place(p, serial, job, now, todo)
  if job.finished then
    local unanswered = job.state ~= 'succeeded' and job.state ~= 'cancelled' and not job.replayed_as and not job.dismissed
    if unanswered then later(todo, 'ZADD', p .. 'inbox', 0, serial) end
    if unanswered and job.owner then later(todo, 'ZADD', p .. 'inbox:' .. job.owner, 0, serial) end
    todo.ended = todo.ended or {}
    append(todo.ended, {job.finished + job.ttl, serial})
    count(todo, 'ended:' .. job.state, 1)
    count_open(todo, job.owner, -1)
    return
  end
  if job.state == 'leased' then
    note_past(p, serial, job, now, 'worker_lost')
    note(job, 'attempts', job.attempts - 1) -- not charged: as after a release
  end
  if job.state == 'delayed' and job.not_before and tonumber(job.not_before) > now then
    return later(todo, 'ZADD', p .. 'delayed', math.min(job.not_before, job.deadline), serial)
  end
  set_state(p, serial, job, 'queued')
  if job.state == 'delayed' then count_start(p, serial, todo) end
  requeue(p, serial, job)
end

-- Each tag of the job has its entries. Returns whether any was missing.
local function mend_tags(p, serial, job)
  local missing = 0
  for _, entry in ipairs(tag_entries(job.tags, serial)) do
    for _, list in ipairs(tag_lists(p, job.owner)) do missing = missing + redis.call('ZADD', list, 'NX', 0, entry) end
  end
  return missing > 0
end

-- The lists of the job's owner agree with those of all jobs; a store from before they existed lacks them. Returns whether they did
-- not agree.
local function mend_lists(p, serial, owner)
  if not owner or owner == '' then return false end
  redis.call('SADD', p .. 'owners', owner)
  local mended = redis.call('ZADD', p .. 'index:' .. owner, 'NX', 0, serial) == 1
  local own, listed = p .. 'inbox:' .. owner, redis.call('ZSCORE', p .. 'inbox', serial)
  if listed then return redis.call('ZADD', own, 'NX', 0, serial) == 1 or mended end
  return redis.call('ZREM', own, serial) == 1 or mended
end

-- The entries of records that are gone leave every line; their tickets are counted below.
local function clear_lines(p, gone)
  if #gone == 0 then return end
  for _, version in ipairs(redis.call('SMEMBERS', p .. 'versions')) do
    for _, line in ipairs(all_lines_of(p, version)) do send('ZREM', line, gone) end
    send('ZREM', p .. 'solo:' .. version, gone)
  end
  for _, worker in ipairs(redis.call('ZRANGE', p .. 'leases', 0, -1)) do send('HDEL', p .. 'held:' .. worker, gone) end
end

-- One ticket per waiting job: missing ones are added, surplus ones taken away. Returns how many.
local function mend_tickets(p)
  local mended, ready = 0, {[0] = 0, [6] = 0, [9] = 0}
  for _, version in ipairs(redis.call('SMEMBERS', p .. 'versions')) do
    for _, line in ipairs(all_lines_of(p, version)) do
      for _, band in ipairs(BANDS) do
        ready[band] = ready[band] + redis.call('ZCOUNT', line, band * WEIGHT, '(' .. (band + 1) * WEIGHT)
      end
    end
    ready[0] = ready[0] + redis.call('ZCARD', p .. 'solo:' .. version)
  end
  for _, band in ipairs(BANDS) do
    local list = tickets(p, band)
    -- If the list is as long as the lines, all is well. Else the tickets are told apart from other entries.
    local missing = ready[band] - redis.call('LLEN', list)
    if missing ~= 0 then missing = ready[band] - #redis.call('LPOS', list, TICKET, 'COUNT', 0) end
    if missing > 0 then push_tickets(p, band, missing) end
    if missing < 0 then redis.call('LREM', list, missing, TICKET) end
    mended = mended + math.abs(missing)
  end
  return mended
end

-- An offer is of use while its slot listens. One that was killed while it waited held no job, so no sweep meets it.
local function drop_dead_offers(p)
  for _, version in ipairs(redis.call('SMEMBERS', p .. 'versions')) do
    local offers = offers_of(p, version)
    send('HDEL', offers, without_subscriber(p, redis.call('HKEYS', offers))) -- guard:dead_offers
  end
end

local function reconcile(keys, args, todo)
  local p, now, limit = keys[1], now_ms(), math.min(RECONCILE_MAX, tonumber(args[2]))
  local from = args[1] == '0' and '-' or '(' .. args[1]
  local page = redis.call('ZRANGEBYLEX', p .. 'index', from, '+', 'LIMIT', 0, limit)
  local orphans, listless, gone = 0, 0, {}
  for _, serial in ipairs(page) do
    local job = load_job(p, serial, {'state', 'version', 'band', 'deadline', 'worker', 'crashes', 'losses', 'created',
      'owner', 'call', 'attempts', 'finished', 'ttl', 'replayed_as', 'dismissed', 'not_before', 'tags', 'epoch', @fields.all})
    if not job.state then
      gone[#gone + 1] = serial
      forget_gone(p, serial, todo)
    elseif not has_place(p, serial, job) then
      if job.worker then redis.call('HDEL', p .. 'held:' .. job.worker, serial) end
      give_place(p, serial, job, now, todo)
      orphans = orphans + 1
    else
      local wrong, turn = leave_wrong_place(p, serial, job), mend_turn(p, serial, job)
      if wrong or turn then orphans = orphans + 1 end
    end
    if job.state then
      local listed, tagged = mend_lists(p, serial, job.owner), mend_tags(p, serial, job)
      local mended = hooks.mended(p, serial, job, now, todo)
      if listed or tagged or mended then listless = listless + 1 end
    end
  end
  clear_lines(p, gone)
  drop_dead_offers(p)
  local mended = 0
  if args[1] == '0' or orphans + #gone > 0 then mended = mend_tickets(p) end
  count(todo, 'repaired', orphans + listless + mended)
  flush(p, todo)
  if redis.call('EXISTS', p .. 'starts') == 0 then redis.call('DEL', p .. 'planned') end
  clear_lists(p, limit)
  if orphans > 0 then wake(p) end
  local cursor = #page < limit and '0' or page[#page]
  return {cursor, #page, orphans + listless, mended, #gone}
end

register('reconcile', reconcile, {'allow-oom'})

-- Whether the next page is due soon, since something was found wrong: until all records were looked at once more and nothing was
-- found, and the lists of what is gone were read. `healing` is `found` in a round over the records in which something was wrong, and
-- `sought` in the round after it. D122: docs/design/store.md
local function heals_on(p, reply)
  local healing = redis.call('GET', p .. 'healing')
  if reply[3] + reply[4] + reply[5] > 0 then healing = 'found' end
  if reply[1] == '0' then healing = healing == 'found' and 'sought' end
  if healing then redis.call('SET', p .. 'healing', healing) else redis.call('DEL', p .. 'healing') end
  return healing or redis.call('EXISTS', p .. 'strays') == 1
end

-- reconcile_next: reconcile the page behind the last one, for all workers.
-- ARGS: ms without another reconcile, the same where the next page is due soon, limit
-- REPLY: as reconcile, then 1 if the next page is due soon, else 0; if another worker did so a moment ago: '' and five times 0
-- LARGEST: as reconcile
local function reconcile_next(keys, args, todo)
  local p = keys[1]
  if not redis.call('SET', p .. 'reconciled', '1', 'NX', 'PX', args[1]) then return {'', 0, 0, 0, 0, 0} end
  local reply = reconcile(keys, {redis.call('GET', p .. 'reconcile_from') or '0', args[3]}, todo)
  redis.call('SET', p .. 'reconcile_from', reply[1])
  local soon = heals_on(p, reply)
  if soon then redis.call('PEXPIRE', p .. 'reconciled', args[2]) end
  reply[6] = soon and 1 or 0
  return reply
end

register('reconcile_next', reconcile_next, {'allow-oom'})
