-- retry: put leased jobs aside for a delay; jobs at their limit of attempts fail for good.
-- ARGS: worker, delay ms, code, message, traceback (mostly empty); per job: serial, token
-- LARGEST: CLAIM_MAX jobs
-- REPLY: per job: ok | dead (failed at the limit) | cancelled | already | stale

local function retry_one(p, serial, token, delay, code, message, traceback, now, todo)
  local job = load_job(p, serial, ENDING)
  local answer = fence(job, token)
  if answer == 'stale' then count(todo, 'stale', 1) end
  if answer ~= 'ok' then return answer, false end
  if job.cancel == '1' then
    cancel_job(p, serial, job, now, todo, token)
    return 'cancelled', true
  end
  if job.attempts - job.losses >= job.max_attempts then -- guard:attempts
    note_traceback(job, token, traceback)
    end_job(p, serial, job, 'failed', now, todo, {code = code, message = message, token = token})
    return 'dead', true
  end
  note_past(p, serial, job, now, 'retried', delay)
  note(job, 'code', code, 'message', message)
  note_traceback(job, token, traceback)
  set_state(p, serial, job, 'delayed', todo, code, message)
  -- A sweep reads only jobs that are due, so a job whose deadline comes first is due at its deadline, to be expired.
  later(todo, 'ZADD', p .. 'delayed', math.min(now + delay, job.deadline), serial)
  count(todo, 'retried', 1)
  return 'ok', true
end

local function retry(keys, args, todo)
  local p, now, reply = keys[1], now_ms(), {}
  if #args > 5 + 2 * CLAIM_MAX then return too_many('retry') end
  for i = 6, #args, 2 do
    local answer, left = retry_one(p, args[i], args[i + 1], args[2], args[3], args[4], args[5], now, todo)
    if left then later(todo, 'HDEL', p .. 'held:' .. args[1], args[i]) end
    reply[#reply + 1] = answer
  end
  flush(p, todo)
  return reply
end

register('retry', retry, {'allow-oom'})
