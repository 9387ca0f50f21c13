-- report: note how far leased jobs are, and append to their streams. Fenced by token; a chunk that is reported again, after a lost
-- reply, is not appended again.
-- ARGS: per job: serial, token, progress (fraction,note; empty: nothing new), how often its stream restarted in this attempt,
--       how many chunks the stream had before, chunks (each behind its length)
-- REPLY: per job: ok | stale (so is an attempt of whose stream the store has lost a part) | cancelled (its end was asked for, and
--        what it reported was noted)
-- LARGEST: CLAIM_MAX jobs
-- D72: docs/design/streams.md
local PUSHED_BYTES = 4096 -- of chunks in one push; a reader gets more chunks from the store

-- A stream begins with its mark: the number of its attempt, and its restarts in that attempt. The chunks of an earlier one go
-- when the next one has its first chunk. Returns false if the stream has fewer chunks than were reported before: the store has come
-- back from a power cut without its last second, and these chunks are lost.
local function append_chunks(p, serial, mark, before, chunks)
  local key = p .. 'stream:' .. serial
  local same = redis.call('LINDEX', key, 0) == mark -- guard:mark
  local known, new, chunk, at = same and redis.call('LLEN', key) - 1 or 0, {}, nil, 1
  if before > known then return false end -- guard:gap
  if chunks == '' then return true end
  if not same then
    redis.call('DEL', key)
    redis.call('RPUSH', key, mark)
  end
  while at <= #chunks do
    chunk, at = struct.unpack('>I4c0', chunks, at)
    before = before + 1
    if before > known then new[#new + 1] = chunk end -- guard:known
  end
  send('RPUSH', key, new)
  return true
end

-- If only the stream has changed, the push says so by the stream's mark. A reader that has seen all chunks before those of the push
-- goes on with them, and asks the store for nothing (D78: docs/design/streams.md).
local function push_report(todo, p, serial, job, progress, restarts, before, chunks)
  local mark = ''
  if chunks ~= '' and progress == '' and job.cancel ~= '1' then mark = job.epoch .. '.' .. restarts end -- guard:pushed_mark
  if mark == '' or #chunks > PUSHED_BYTES then chunks = '' end -- guard:pushed_bytes
  push_change(todo, p, job.watch, false, serial, 'leased', mark, chunks, '', tostring(before), '', '')
end

-- An attempt whose stream has a gap ends here, and the next one streams from the start.
local function give_up(p, serial, token, worker, now, todo)
  release_one(p, serial, token, '', '', now, todo)
  later(todo, 'HDEL', p .. 'held:' .. worker, serial)
  todo.given_up = true
  return 'stale'
end

local function report_one(p, serial, token, progress, restarts, before, chunks, now, todo)
  local job = load_job(p, serial, {'state', 'token', 'final_token', 'cancel', 'watch', 'epoch', 'worker', @fields.reported})
  if fence(job, token) ~= 'ok' then return 'stale' end -- guard:report
  if chunks ~= '' or before > 0 then
    local whole = append_chunks(p, serial, job.epoch .. '.' .. restarts, before, chunks)
    if not whole then return give_up(p, serial, token, job.worker, now, todo) end
    if chunks == '' and progress == '' then return job.cancel == '1' and 'cancelled' or 'ok' end
  end
  if progress ~= '' then redis.call('HSET', p .. 'job:' .. serial, 'progress', job.epoch .. ',' .. now .. ',' .. progress) end
  hooks.reported(p, serial, job, progress, now, todo)
  push_report(todo, p, serial, job, progress, restarts, before, chunks)
  return job.cancel == '1' and 'cancelled' or 'ok'
end

local function report(keys, args, todo)
  if #args > CLAIM_MAX * @report.stride then return too_many('report') end
  local p, now, reply = keys[1], now_ms(), {}
  for i = @report.first, #args, @report.stride do
    local before, chunks = tonumber(args[i + @report.before]), args[i + @report.chunks]
    reply[#reply + 1] = report_one(p, args[i], args[i + @report.token], args[i + @report.progress], args[i + @report.restarts], before,
      chunks, now, todo)
  end
  flush(p, todo)
  if todo.given_up then wake(p) end
  return reply
end

register('report', report, {'allow-oom'})
