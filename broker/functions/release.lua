-- release: give leased jobs back without a verdict. Only the reason 'crashed' is charged: the attempt counts, crashes grow by one,
-- and the job runs alone next time.
-- ARGS: worker, reason, how the process died (may be empty); per job: serial, token
-- REPLY: per job: ok | dead (crashes or attempts spent) | cancelled | already | stale

local function release_one(p, serial, token, reason, detail, now, todo)
  local job = load_job(p, serial, ENDING)
  local answer = fence(job, token)
  if answer == 'stale' then count(todo, 'stale', 1) end
  if answer ~= 'ok' then return answer, false end
  if job.cancel == '1' then
    cancel_job(p, serial, job, now, todo, token)
    return 'cancelled', true
  end
  if reason == 'crashed' then return crash_job(p, serial, job, now, todo, token, detail), true end
  note_past(p, serial, now, 'released')
  redis.call('HSET', p .. 'job:' .. serial, 'state', 'queued', 'token', '', 'attempts', job.attempts - 1)
  requeue(p, serial, job)
  count(todo, 'redelivered:given_back', 1)
  return 'ok', true
end

local function release(keys, args)
  local p, now, todo, reply = keys[1], now_ms(), {}, {}
  for i = 4, #args, 2 do
    local answer, left = release_one(p, args[i], args[i + 1], args[2], args[3], now, todo)
    if left then redis.call('HDEL', p .. 'held:' .. args[1], args[i]) end
    reply[#reply + 1] = answer
  end
  flush(p, todo)
  wake(p)
  return reply
end

register('release', release, {'allow-oom'})
