-- release: give leased jobs back without a verdict. Only the reason 'crashed' is charged: the attempt counts, crashes grow by one,
-- and the job runs alone next time. For the reason 'reading' a job waits aside for a while, because its input is still on its way: the
-- longer it has waited, the longer.
-- ARGS: worker, reason, how the process died (may be empty); per job: serial, token
-- LARGEST: CLAIM_MAX jobs
-- REPLY: per job: ok | dead (crashes or attempts spent) | cancelled | already | stale
-- D150: docs/design/batching.md
local AGAIN_MIN_MS, AGAIN_MAX_MS, AGAIN_SHARE = 250, 4000, 4

-- An input that is fetched may be looked for many times: that is no attempt, and `past` has no entry for it.
local function put_aside(p, serial, job, now, todo)
  job.noted = {'attempts', job.attempts - 1} -- guard:reading
  set_state(p, serial, job, 'delayed', todo)
  local waited = now - (job.not_before or job.created)
  local delay = math.max(AGAIN_MIN_MS, math.min(AGAIN_MAX_MS, math.floor(waited / AGAIN_SHARE)))
  later(todo, 'ZADD', p .. 'delayed', math.min(now + delay, job.deadline), serial)
  count(todo, 'redelivered:reading', 1)
end

function release_one(p, serial, token, reason, detail, now, todo)
  local job = load_job(p, serial, ENDING)
  local answer = fence(job, token)
  if answer == 'stale' then count(todo, 'stale', 1) end
  if answer ~= 'ok' then return answer, false end
  if job.cancel == '1' then
    cancel_job(p, serial, job, now, todo, token)
    return 'cancelled', true
  end
  if reason == 'crashed' then return crash_job(p, serial, job, now, todo, token, detail), true end
  if reason == 'reading' then
    put_aside(p, serial, job, now, todo)
    return 'ok', true
  end
  note_past(p, serial, job, now, 'released')
  note(job, 'attempts', job.attempts - 1)
  set_state(p, serial, job, 'queued', todo)
  requeue(p, serial, job)
  count(todo, 'redelivered:given_back', 1)
  return 'ok', true
end

local function release(keys, args, todo)
  local p, now, reply = keys[1], now_ms(), {}
  if #args > 3 + 2 * CLAIM_MAX then return too_many('release') end
  for i = 4, #args, 2 do
    local answer, left = release_one(p, args[i], args[i + 1], args[2], args[3], now, todo)
    if left then later(todo, 'HDEL', p .. 'held:' .. args[1], args[i]) end
    reply[#reply + 1] = answer
  end
  flush(p, todo)
  wake(p)
  return reply
end

register('release', release, {'allow-oom'})
