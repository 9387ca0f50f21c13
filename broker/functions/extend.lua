-- extend: push the lease of a worker and of all its jobs forward; take back jobs that run for too long.
-- ARGS: worker, lease ms, max run ms; per job that made progress (its run time starts again): serial
-- LARGEST: the jobs that one worker holds
-- REPLY: ok | lost, number of cancelled; then serials asked to be cancelled; then serials taken back

-- End or queue again a job that ran for too long.
local function overran(p, serial, job, now, todo)
  if job.cancel == '1' then
    note_past(p, serial, job, now, 'cancelled')
    cancel_job(p, serial, job, now, todo)
  else crash_job(p, serial, job, now, todo)
  end
end

local function extend(keys, args, todo)
  local p, now = keys[1], now_ms()
  local worker, held = args[1], p .. 'held:' .. args[1]
  if not redis.call('ZSCORE', p .. 'leases', worker) then return {'lost', 0} end
  redis.call('ZADD', p .. 'leases', now + args[2], worker)
  local cancelled, overrun, got_on = {}, {}, {}
  for i = 4, #args do got_on[args[i]] = true end
  local all = redis.call('HGETALL', held)
  for i = 1, #all, 2 do
    local since, shard = math.abs(all[i + 1]), tonumber(all[i + 1]) < 0
    if got_on[all[i]] then -- guard:got_on
      redis.call('HSET', held, all[i], shard and -now or now)
      since = now
    end
    if now - since >= tonumber(args[3]) then
      overrun[#overrun + 1] = all[i]
    elseif redis.call('HGET', p .. 'job:' .. all[i], 'cancel') == '1' then
      cancelled[#cancelled + 1] = all[i]
    end
  end
  table.sort(overrun)
  for _, serial in ipairs(overrun) do
    local job = load_job(p, serial, ENDING)
    if job.state == 'leased' and job.worker == worker then overran(p, serial, job, now, todo) end
    later(todo, 'HDEL', held, serial)
  end
  flush(p, todo)
  if #overrun > 0 then wake(p) end
  local reply = {'ok', #cancelled}
  for _, serial in ipairs(cancelled) do reply[#reply + 1] = serial end
  for _, serial in ipairs(overrun) do reply[#reply + 1] = serial end
  return reply
end

register('extend', extend, {'allow-oom'})
