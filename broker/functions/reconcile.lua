-- reconcile: compare records with their indexes and mend what disagrees. Every count but `scanned` must stay 0.
-- ARGS: cursor ('0' starts), limit
-- REPLY: next cursor ('0' = done), scanned, mended orphans, added tickets

local function has_place(p, serial, job)
  if job.state == 'queued' then
    return redis.call('ZSCORE', line_of(p, job.version, job.owner, job.call), serial)
      or redis.call('ZSCORE', p .. 'solo:' .. job.version, serial)
  end
  if job.state == 'delayed' then return redis.call('ZSCORE', p .. 'delayed', serial) end
  if job.state == 'leased' then
    return redis.call('ZSCORE', p .. 'leases', job.worker) and redis.call('HEXISTS', p .. 'held:' .. job.worker, serial) == 1
  end
  return true
end

-- Give the job's owner a turn if it has none, since its line would never be served. Returns whether that was so.
local function mend_turn(p, serial, job)
  if job.state ~= 'queued' or not job.owner or job.owner == '' or job.call == 'shard' then return false end
  local score = redis.call('ZSCORE', line_of(p, job.version, job.owner), serial)
  return score and take_turn(p, job.version, band_of(tonumber(score)), job.owner)
end

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
    local missing = ready[band] - redis.call('LLEN', tickets(p, band))
    if missing > 0 then
      push_tickets(p, band, missing)
      mended = mended + missing
    end
  end
  return mended
end

local function reconcile(keys, args)
  local p, todo = keys[1], {}
  local from = args[1] == '0' and '-' or '(' .. args[1]
  local page = redis.call('ZRANGEBYLEX', p .. 'index', from, '+', 'LIMIT', 0, args[2])
  local orphans = 0
  for _, serial in ipairs(page) do
    local job = load_job(p, serial, {'state', 'version', 'band', 'deadline', 'worker', 'crashes', 'losses', 'created',
      'owner', 'call'})
    if job.state and not has_place(p, serial, job) then
      if job.state == 'leased' then note_past(p, serial, now_ms(), 'worker_lost') end
      redis.call('HSET', p .. 'job:' .. serial, 'state', 'queued', 'token', '')
      if job.worker then redis.call('HDEL', p .. 'held:' .. job.worker, serial) end
      requeue(p, serial, job)
      orphans = orphans + 1
    elseif mend_turn(p, serial, job) then
      orphans = orphans + 1
    end
  end
  local mended = 0
  if args[1] == '0' then mended = mend_tickets(p) end
  count(todo, 'repaired', orphans + mended)
  flush(p, todo)
  if orphans > 0 then wake(p) end
  local cursor = #page < tonumber(args[2]) and '0' or page[#page]
  return {cursor, #page, orphans, mended}
end

register('reconcile', reconcile, {'allow-oom'})
