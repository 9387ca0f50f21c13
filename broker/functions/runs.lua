-- Runs: offline jobs over files. One driver at a time works on a run, holds it until `until`, and is known by its name.
--
-- KEYS[1] of each function is `ps:runs:{runs}:`, not a model's prefix; all other keys are built from it:
--   run:<id>     hash   the record; `spec`, `counts` and `details` are JSON, moments are ms
--   index        zset   id -> created; of:<owner> and live (those that have not ended) hold parts of the same
--   final        zset   id -> finished

do
local RUN = {'owner', 'spec', 'state', 'created', 'started', 'finished', 'version', 'counts', 'rate', 'busy', 'driver', 'until',
  'request', 'code', 'message', 'details'}
local ENDED = {completed = true, failed = true, cancelled = true, expired = true}
local KEEP_LOOK, PAGE = 100, 100

local function record_of(r, id)
  local run = redis.call('HMGET', r .. 'run:' .. id, unpack(RUN))
  if not run[1] then return false end
  for i = 1, #RUN do run[i] = run[i] or '' end
  return run
end

local function forget(r, id)
  local owner = redis.call('HGET', r .. 'run:' .. id, 'owner') or ''
  redis.call('DEL', r .. 'run:' .. id)
  for _, index in ipairs({'index', 'of:' .. owner, 'live', 'final'}) do redis.call('ZREM', r .. index, id) end
end

local function forget_old(r, keep, now)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', r .. 'final', '-inf', now - keep, 'LIMIT', 0, KEEP_LOOK)) do forget(r, id) end
end

local function end_run(r, id, state, now)
  redis.call('HSET', r .. 'run:' .. id, 'state', state, 'finished', now, 'until', now)
  redis.call('ZREM', r .. 'live', id)
  redis.call('ZADD', r .. 'final', now, id)
end

-- Whether the run belongs to another owner than asked for. `whose` is '=' and the owner, or empty for any owner.
local function not_theirs(owner, whose) return whose ~= '' and '=' .. owner ~= whose end

-- run_create: store a new run, unless its id is taken; forget runs that ended long ago.
-- ARGS: id, owner, spec, ms that ended runs are kept
-- REPLY: created | existing, the record
local function run_create(keys, args)
  local r, now, id = keys[1], now_ms(), args[1]
  forget_old(r, args[4], now)
  local found = record_of(r, id)
  if found then return {'existing', found} end
  redis.call('HSET', r .. 'run:' .. id, 'owner', args[2], 'spec', args[3], 'state', 'queued', 'created', now)
  for _, index in ipairs({'index', 'of:' .. args[2], 'live'}) do redis.call('ZADD', r .. index, now, id) end
  return {'created', record_of(r, id)}
end

-- run_take: make a driver the holder of a run.
-- ARGS: id, driver, lease ms
-- REPLY: taken | held (by another driver) | final | missing, the record
local function run_take(keys, args)
  local r, now, id, driver = keys[1], now_ms(), args[1], args[2]
  local state, holder, till = unpack(redis.call('HMGET', r .. 'run:' .. id, 'state', 'driver', 'until'))
  if not state then return {'missing', false} end
  if ENDED[state] then return {'final', record_of(r, id)} end
  if holder and holder ~= driver and tonumber(till) > now then return {'held', record_of(r, id)} end -- guard:run_held
  redis.call('HSET', r .. 'run:' .. id, 'driver', driver, 'until', now + args[3])
  return {'taken', record_of(r, id)}
end

-- run_update: write changes of the record and extend the driver's lease.
-- ARGS: id, driver, lease ms; per change: field, value
-- REPLY: ok | cancel (written, and a cancel was asked for) | lost | final | missing
local function run_update(keys, args)
  local r, now, id = keys[1], now_ms(), args[1]
  local key = r .. 'run:' .. id
  local state, holder, request = unpack(redis.call('HMGET', key, 'state', 'driver', 'request'))
  if not state then return 'missing' end
  if holder ~= args[2] then return 'lost' end -- guard:run_fence
  if ENDED[state] then return 'final' end -- guard:run_final
  redis.call('HSET', key, 'until', now + args[3], unpack(args, 4))
  local wanted = redis.call('HGET', key, 'state')
  if wanted ~= 'queued' then redis.call('HSETNX', key, 'started', now) end
  if ENDED[wanted] then end_run(r, id, wanted, now) end
  return request == 'cancel' and 'cancel' or 'ok'
end

-- run_reopen: queue a run again that ended without being completed.
-- ARGS: id
-- REPLY: reopened | live | completed | missing
local function run_reopen(keys, args)
  local r, now, id = keys[1], now_ms(), args[1]
  local key = r .. 'run:' .. id
  local state = redis.call('HGET', key, 'state')
  if not state then return 'missing' end
  if not ENDED[state] then return 'live' end
  if state == 'completed' then return 'completed' end
  redis.call('HDEL', key, 'finished', 'request', 'code', 'message', 'driver', 'until')
  redis.call('HSET', key, 'state', 'queued')
  redis.call('ZREM', r .. 'final', id)
  redis.call('ZADD', r .. 'live', redis.call('HGET', key, 'created'), id)
  return 'reopened'
end

-- run_ask: ask that a run be cancelled.
-- ARGS: id, whose
-- REPLY: cancelled (it had no driver) | requested | final | missing
local function run_ask(keys, args)
  local r, now, id = keys[1], now_ms(), args[1]
  local state, owner, till = unpack(redis.call('HMGET', r .. 'run:' .. id, 'state', 'owner', 'until'))
  if not state or not_theirs(owner, args[2]) then return 'missing' end
  if ENDED[state] then return 'final' end
  redis.call('HSET', r .. 'run:' .. id, 'request', 'cancel')
  if state ~= 'queued' or tonumber(till or 0) > now then return 'requested' end
  end_run(r, id, 'cancelled', now)
  return 'cancelled'
end

-- run_read: one run's record.
-- ARGS: id
-- REPLY: now ms, the record (nil if unknown)
local function run_read(keys, args) return {now_ms(), record_of(keys[1], args[1])} end

-- run_list: a page of runs, newest first; empty if the id to start behind is not known (any more).
-- ARGS: ms that ended runs are kept, whose, id to start behind ('' = newest), limit; per wanted state (none = all): state
-- REPLY: now ms; per run: id, record
local function run_list(keys, args)
  local r, now, whose, after, reply = keys[1], now_ms(), args[2], args[3], {}
  forget_old(r, args[1], now)
  local wanted, live = {}, #args > 4
  for i = 5, #args do
    wanted[args[i]] = true
    if ENDED[args[i]] then live = false end
  end
  local index = r .. (live and 'live' or whose ~= '' and 'of:' .. string.sub(whose, 2) or 'index')
  local before = after ~= '' and tonumber(redis.call('HGET', r .. 'run:' .. after, 'created') or -1)
  local at = (before and redis.call('ZCOUNT', index, '-inf', before) or redis.call('ZCARD', index)) - 1
  reply[1] = now
  while at >= 0 and #reply < 2 * args[4] do
    local page = redis.call('ZRANGE', index, math.max(0, at - PAGE + 1), at)
    for i = #page, 1, -1 do
      local run = record_of(r, page[i])
      local behind = not before or tonumber(run[4]) < before or page[i] < after
      local asked = #args == 4 or wanted[run[3]]
      if behind and asked and not not_theirs(run[1], whose) and #reply < 2 * args[4] then
        reply[#reply + 1], reply[#reply + 2] = page[i], run
      end
    end
    at = at - PAGE
  end
  return reply
end

-- run_drop: forget an ended run.
-- ARGS: id, whose
-- REPLY: dropped | live (not ended: nothing was done) | missing
local function run_drop(keys, args)
  local r, id = keys[1], args[1]
  local state, owner = unpack(redis.call('HMGET', r .. 'run:' .. id, 'state', 'owner'))
  if not state or not_theirs(owner, args[2]) then return 'missing' end
  if not ENDED[state] then return 'live' end
  forget(r, id)
  return 'dropped'
end

register('run_create', run_create, {})
register('run_take', run_take, {'allow-oom'})
register('run_update', run_update, {'allow-oom'})
register('run_reopen', run_reopen, {'allow-oom'})
register('run_ask', run_ask, {'allow-oom'})
register('run_read', run_read, {'no-writes', 'allow-stale'})
register('run_list', run_list, {'allow-oom'})
register('run_drop', run_drop, {'allow-oom'})
end
