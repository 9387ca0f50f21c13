-- Jobs of pipelines that ended while nobody may have driven them: the jobs of their stages are still to be cancelled. Jobs that
-- succeeded or failed ended with their stages. A job that no executor has begun has no stages, and is not listed.
-- D147: docs/design/pipelines.md
-- field: driven
--
--   driven     field of a record  there once an executor has begun to drive the job
--   undriven   zset               `serial,owner` of a driven job that ended cancelled, dead or expired -> when
local ENTRY = '%s,%s'

local function list_of(p) return p .. 'undriven' end

-- hook: ended
function own.ended(p, serial, job, state, now, todo)
  if state == 'succeeded' or state == 'failed' then return end
  later(todo, 'ZADD', list_of(p), now, string.format(ENTRY, serial, job.owner or ''))
end

-- hook: dropped
-- Where no executor has looked for as long as the record was kept, the stages have ended by their deadlines.
function own.dropped(p, serial, job, todo)
  later(todo, 'ZREM', list_of(p), string.format(ENTRY, serial, job.owner or ''))
end

-- begin_drive: the job has stages from now on. A repeat changes nothing.
-- ARGS: serial
-- REPLY: for how many ms its result is kept after its end; nil if the job is unknown
-- LARGEST: one job
-- unwaited: begin_drive (if the store loses it, stages of a cancelled job may run to their end)
local function begin_drive(keys, args)
  local key = keys[1] .. 'job:' .. args[1]
  local kept = redis.call('HGET', key, 'ttl')
  if kept then redis.call('HSET', key, 'driven', '1') end
  return kept
end

register('begin_drive', begin_drive, {'allow-oom'})

-- undriven: jobs whose stages are to be cancelled, the first that ended first; those named in ARGS are done, and leave the list.
-- ARGS: limit; per job that is done: its entry
-- REPLY: entries
-- LARGEST: `limit` jobs
local function undriven(keys, args)
  local list = list_of(keys[1])
  send('ZREM', list, {unpack(args, 2)})
  return redis.call('ZRANGE', list, 0, args[1] - 1)
end

register('undriven', undriven, {'allow-oom'})
