-- cancel: end a waiting job at once, flag a running one. Whichever comes first wins: after the job's end a cancel changes nothing.
-- ARGS: serial, owner
-- REPLY: cancelled | requested | final | missing
-- LARGEST: one job

local function cancel(keys, args, todo)
  local p, now, serial = keys[1], now_ms(), args[1]
  local job = load_job(p, serial, {'state', 'version', 'owner', 'ttl', 'watch', 'code', 'worker', 'call', 'in',
    'not_before', 'epoch', @fields.all})
  if not job.state or (job.owner or '') ~= args[2] then return 'missing' end
  if job.state == 'leased' then
    redis.call('HSET', p .. 'job:' .. serial, 'cancel', '1')
    redis.call('SPUBLISH', p .. 'worker:' .. job.worker, 'c' .. serial)
    return 'requested'
  end
  if job.state ~= 'queued' and job.state ~= 'delayed' then return 'final' end -- guard:final
  cancel_in_line(p, serial, job, now, todo)
  flush(p, todo)
  return 'cancelled'
end

register('cancel', cancel, {'allow-oom'})
