-- purge: cancel waiting jobs of the queue, some per call: those in line, suspects, and those that wait for their start or a retry.
-- Shards stay, because they belong to runs, which are cancelled as a whole.
-- ARGS: most jobs
-- REPLY: jobs cancelled, '1' if there may be more
-- LARGEST: PURGE_MAX jobs; looks once at each owner in line
local PURGE_MAX = 100

local function waiting_lines(p)
  local lines = {p .. 'delayed'}
  for _, version in ipairs(redis.call('SMEMBERS', p .. 'versions')) do
    append(lines, {line_of(p, version), p .. 'solo:' .. version})
    for _, band in ipairs(BANDS) do
      for _, owner in ipairs(redis.call('ZRANGE', turns_of(p, version, band), 0, -1)) do
        lines[#lines + 1] = line_of(p, version, owner)
      end
    end
  end
  return lines
end

local function cancel_waiting(p, line, serial, now, todo)
  local job = load_job(p, serial, {'state', 'version', 'owner', 'ttl', 'watch', 'code', 'worker', 'call', 'in',
    'not_before', 'epoch', @fields.all})
  if job.state ~= 'queued' and job.state ~= 'delayed' then
    -- `reconcile` mends what disagrees with its record.
    redis.call('ZREM', line, serial)
    return 0
  end
  if job.call == 'shard' then return 0 end
  cancel_in_line(p, serial, job, now, todo)
  return 1
end

local function purge(keys, args, todo)
  local p, now, cancelled = keys[1], now_ms(), 0
  local left = math.min(PURGE_MAX, tonumber(args[1]))
  for _, line in ipairs(waiting_lines(p)) do
    if left > 0 then
      local serials = redis.call('ZRANGE', line, 0, left - 1)
      for _, serial in ipairs(serials) do cancelled = cancelled + cancel_waiting(p, line, serial, now, todo) end
      left = left - #serials
    end
  end
  flush(p, todo)
  return {cancelled, left == 0 and cancelled > 0 and '1' or ''}
end

register('purge', purge, {'allow-oom'})
