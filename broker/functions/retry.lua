-- retry: put leased jobs aside for a delay; jobs at their limit of attempts fail for good.
-- ARGS: worker, delay ms, code, message; per job: serial, token
-- REPLY: per job: ok | dead (failed at the limit) | cancelled | already | stale

local function retry_one(p, serial, token, delay, code, message, now, todo)
  local job = load_job(p, serial, ENDING)
  local answer = fence(job, token)
  if answer == 'stale' then count(todo, 'stale', 1) end
  if answer ~= 'ok' then return answer, false end
  if job.cancel == '1' then
    cancel_job(p, serial, job, now, todo, token)
    return 'cancelled', true
  end
  if job.attempts - job.losses >= job.max_attempts then -- guard:attempts
    end_job(p, serial, job, 'failed', now, todo, {code = code, message = message, token = token})
    count(todo, 'ended:failed', 1)
    return 'dead', true
  end
  note_past(p, serial, now, 'retried', delay)
  redis.call('HSET', p .. 'job:' .. serial, 'state', 'delayed', 'token', '', 'code', code, 'message', message)
  -- A sweep looks at nothing but what is due by now, so a job whose deadline comes first is due then, to be expired.
  redis.call('ZADD', p .. 'delayed', math.min(now + delay, job.deadline), serial)
  count(todo, 'retried', 1)
  return 'ok', true
end

local function retry(keys, args)
  local p, now, todo, reply = keys[1], now_ms(), {}, {}
  for i = 5, #args, 2 do
    local answer, left = retry_one(p, args[i], args[i + 1], args[2], args[3], args[4], now, todo)
    if left then redis.call('HDEL', p .. 'held:' .. args[1], args[i]) end
    reply[#reply + 1] = answer
  end
  flush(p, todo)
  return reply
end

register('retry', retry, {'allow-oom'})
