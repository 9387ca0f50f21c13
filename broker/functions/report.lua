-- report: note how far leased jobs are, and append to their streams. Fenced by token; a chunk that is reported again, after a lost
-- reply, is not appended again.
-- ARGS: per job: serial, token, progress (fraction,note; empty: nothing new), how many chunks the attempt had before,
--       chunks (each behind its length)
-- REPLY: per job: ok | stale | cancelled (its end was asked for, and what it reported was noted)
-- LARGEST: CLAIM_MAX jobs
-- D72: docs/design/streams.md
local REPORT_STRIDE = 5

-- A stream begins with the number of its attempt. What an earlier attempt left goes when the next one has its first chunk.
local function append_chunks(p, serial, attempt, before, chunks)
  local key = p .. 'stream:' .. serial
  if redis.call('LINDEX', key, 0) ~= attempt then -- guard:attempt
    redis.call('DEL', key)
    redis.call('RPUSH', key, attempt)
  end
  local known, new, chunk, at = redis.call('LLEN', key) - 1, {}, nil, 1
  while at <= #chunks do
    chunk, at = struct.unpack('>I4c0', chunks, at)
    before = before + 1
    if before > known then new[#new + 1] = chunk end -- guard:known
  end
  send('RPUSH', key, new)
end

local function report_one(p, serial, token, progress, before, chunks, now, todo)
  local job = load_job(p, serial, {'state', 'token', 'final_token', 'cancel', 'watch', 'epoch'})
  if fence(job, token) ~= 'ok' then return 'stale' end -- guard:report
  if chunks ~= '' then append_chunks(p, serial, job.epoch, before, chunks) end
  if progress ~= '' then redis.call('HSET', p .. 'job:' .. serial, 'progress', job.epoch .. ',' .. now .. ',' .. progress) end
  push_change(todo, p, job.watch, false, serial, 'leased', '', '', '', '', '', '')
  return job.cancel == '1' and 'cancelled' or 'ok'
end

local function report(keys, args, todo)
  if #args > CLAIM_MAX * REPORT_STRIDE then return too_many('report') end
  local p, now, reply = keys[1], now_ms(), {}
  for i = 1, #args, REPORT_STRIDE do
    reply[#reply + 1] = report_one(p, args[i], args[i + 1], args[i + 2], tonumber(args[i + 3]), args[i + 4], now, todo)
  end
  flush(p, todo)
  return reply
end

register('report', report, {'allow-oom'})
