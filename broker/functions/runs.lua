-- Runs: offline jobs over files. One driver at a time works on a run, holds it until `until`, and is known by its name.
--
-- KEYS[1] of each function is `ps:runs:{runs}:`, not a model's prefix; all other keys are built from it:
--   run:<id>     hash   the record; `spec`, `counts` and `details` are JSON, moments are ms
--   index        zset   id -> created; of:<owner>, live (those that have not ended) and live:<owner> hold parts of the same
--   owned        text   every run of live is in its live:<owner>: not so for runs that were created before there was one
--   final        zset   id -> finished
-- Runs that runners drive (not those of commands) are, while they live, in one of the first two:
--   waits:<owner>  zset   id -> created: runs without a driver
--   driven         zset   id -> end of the driver's lease; a run past it goes back to `waits` with the next look
--   due            zset   id of a queued run -> its deadline
--   turns          zset   owner with waiting runs -> about when a run of theirs was last taken, or the first one came
-- A run that was split (`parts`: how many parts it has) has, besides:
--   run:<part>     hash   the record of a part, as of a run, without a spec; `part` is JSON, `part_of` the run's id
--   parts:<id>     zset   part -> its number
--   open:<id>      zset   part that has not ended -> end of its driver's lease, 0: it never had a driver
-- Parts are in no other list. Their run waits in its line for as long as it lives; what there is to take of it is looked up.

do
local RUN = {@run.list}
-- What concerns parts; one name, because Lua has few for all functions together.
local part = {}
local ENDED = {completed = true, failed = true, cancelled = true, expired = true}
local KEEP_LOOK, PAGE = 100, 100
local MOST_SEEN = 500 -- a list looks at so many runs per call
local HOLD_MS = 60000 -- an old run that an extension still needs is looked at again after this
-- A run that kills its drivers could kill runner after runner. `drives` counts the drives since the run last made progress
-- (`most`: the rows finished then), or since a driver left it in order.
local MOST_DRIVES = 3
local LOST_CODE = 'driver_lost'
local LOST_WHY = 'the process that drove the run died three times in a row without getting any further; '
  .. 'perhaps a row of the input needs more memory than that process may have'

local function record_of(r, id)
  local run = redis.call('HMGET', r .. 'run:' .. id, unpack(RUN))
  if not run[@run.owner] then return false end
  if run[@run.part_of] then run[@run.spec] = redis.call('HGET', r .. 'run:' .. run[@run.part_of], 'spec') end
  if run[@run.parts] then
    -- The driver of a run with driven parts is the driver of the part whose lease lasts longest.
    local last, till = unpack(redis.call('ZRANGE', r .. 'open:' .. id, -1, -1, 'WITHSCORES'))
    if last and tonumber(till) > tonumber(run[@run.until] or 0) then
      run[@run.driver], run[@run.until] = redis.call('HGET', r .. 'run:' .. last, 'driver'), till
    end
  end
  for i = 1, #RUN do run[i] = run[i] or '' end
  return run
end

function part.has_ended(r, id) return ENDED[redis.call('HGET', r .. 'run:' .. id, 'state') or 'failed'] end

-- What a driver may take of a run without a holder: one of its parts, or the run itself, to split it or to join its parts.
function part.takeable(r, id, now)
  local parts = redis.call('HGET', r .. 'run:' .. id, 'parts')
  if not parts or redis.call('EXISTS', r .. 'open:' .. id) == 0 then return id end
  return redis.call('ZRANGEBYSCORE', r .. 'open:' .. id, '-inf', now, 'LIMIT', 0, 1)[1]
end

-- The runs of an owner that have not ended.
local function live_of(r, owner)
  if redis.call('EXISTS', r .. 'owned') == 0 then
    for _, id in ipairs(redis.call('ZRANGE', r .. 'live', 0, -1)) do
      local whose, created = unpack(redis.call('HMGET', r .. 'run:' .. id, 'owner', 'created'))
      if whose then redis.call('ZADD', r .. 'live:' .. whose, created, id) end
    end
    redis.call('SET', r .. 'owned', 1)
  end
  return r .. 'live:' .. owner
end

local function leave_live(r, id, owner)
  redis.call('ZREM', r .. 'live:' .. owner, id)
  redis.call('ZREM', r .. 'live', id)
  if redis.call('EXISTS', r .. 'live') == 0 then redis.call('DEL', r .. 'owned') end
end

local function leave_line(r, id, owner)
  redis.call('ZREM', r .. 'waits:' .. owner, id)
  if redis.call('EXISTS', r .. 'waits:' .. owner) == 0 then redis.call('ZREM', r .. 'turns', owner) end
end

-- A place behind all others, also within one millisecond.
local function last_turn(r, now)
  return math.max(now, tonumber(redis.call('ZRANGE', r .. 'turns', -1, -1, 'WITHSCORES')[2] or 0) + 1)
end

local function join_line(r, id, now)
  local owner, created, command, state = unpack(redis.call('HMGET', r .. 'run:' .. id, 'owner', 'created', 'command', 'state'))
  if owner and not command and not ENDED[state] then
    redis.call('ZADD', r .. 'turns', 'NX', last_turn(r, now), owner)
    redis.call('ZADD', r .. 'waits:' .. owner, created, id)
  end
  -- Last: after a call that failed before this line, the next look mends the entry.
  redis.call('ZREM', r .. 'driven', id)
end

-- The driver holds the run until then. If its beat was late, the run may be back in its line.
local function hold(r, id, owner, command, till, whole)
  if whole then return redis.call('ZADD', r .. 'open:' .. whole, till, id) end
  if command then return end
  redis.call('ZADD', r .. 'driven', till, id)
  leave_line(r, id, owner)
end

-- The entry in `final` goes last: a call that fails in between is made up for by the next one that forgets.
local function forget(r, id, todo)
  local run = read_fields(r .. 'run:' .. id, {'owner', @fields.dropped})
  local owner = run.owner or ''
  leave_line(r, id, owner)
  leave_live(r, id, owner)
  for _, index in ipairs({'index', 'of:' .. owner, 'driven', 'due'}) do redis.call('ZREM', r .. index, id) end
  hooks.leaving(r, id, run, owner)
  for _, one in ipairs(redis.call('ZRANGE', r .. 'parts:' .. id, 0, -1)) do redis.call('DEL', r .. 'run:' .. one) end
  for _, index in ipairs({'parts:', 'open:'}) do redis.call('DEL', r .. index .. id) end
  redis.call('DEL', r .. 'run:' .. id)
  hooks.dropped(r, id, run, todo)
  flush(r, todo)
  redis.call('ZREM', r .. 'final', id)
end

local function forget_old(r, keep, now, todo)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', r .. 'final', '-inf', now - keep, 'LIMIT', 0, KEEP_LOOK)) do
    local run = read_fields(r .. 'run:' .. id, {'state', @fields.dropping})
    if run.state and not ENDED[run.state] then redis.call('ZREM', r .. 'final', id)
    elseif hooks.dropping(r, id, run) then redis.call('ZADD', r .. 'final', now - keep + HOLD_MS, id) -- guard:pending_run
    else forget(r, id, todo) end
  end
end

local function end_run(r, id, state, now, todo)
  local run = read_fields(r .. 'run:' .. id, {'owner', @fields.ended})
  -- The record between the two: wherever a call fails, the run is listed as live until it has ended, and is forgotten in time. What
  -- extensions note of its end has its places before, since no call mends runs.
  redis.call('ZADD', r .. 'final', now, id)
  hooks.ended(r, id, run, state, now, todo, NOTHING)
  flush(r, todo)
  hooks.ending(r, id, run, state, now)
  redis.call('HSET', r .. 'run:' .. id, 'state', state, 'finished', now, 'until', now, unpack(run.noted or NOTHING))
  leave_line(r, id, run.owner or '')
  leave_live(r, id, run.owner or '')
  for _, index in ipairs({'driven', 'due'}) do redis.call('ZREM', r .. index, id) end
end

-- The end of a run, or of a part. A part that did not reach its end ends its run with it, for the same reason.
function part.finish(r, id, whole, state, now, todo)
  if not whole then return end_run(r, id, state, now, todo) end
  if state ~= 'completed' and not part.has_ended(r, whole) then
    local code, message, details = unpack(redis.call('HMGET', r .. 'run:' .. id, 'code', 'message', 'details'))
    redis.call('HSET', r .. 'run:' .. whole, 'code', code or '', 'message', message or '', 'details', details or '')
    end_run(r, whole, state, now, todo)
  end
  redis.call('HSET', r .. 'run:' .. id, 'state', state, 'finished', now, 'until', now)
  redis.call('ZREM', r .. 'open:' .. whole, id)
end

function part.rows_of(counts)
  local rows = counts and cjson.decode(counts) or NOTHING
  return rows.done or 0, rows.failed or 0, rows.total
end

-- Before a part's counts are written, those of its run change by the difference.
function part.count(r, id, whole, counts)
  local done, failed = part.rows_of(counts)
  local done_before, failed_before = part.rows_of(redis.call('HGET', r .. 'run:' .. id, 'counts'))
  local all_done, all_failed, total = part.rows_of(redis.call('HGET', r .. 'run:' .. whole, 'counts'))
  total = type(total) == 'number' and string.format('%.0f', total) or 'null'
  local sum = string.format('{"total":%s,"done":%.0f,"failed":%.0f}', total, all_done + done - done_before,
    all_failed + failed - failed_before)
  redis.call('HSET', r .. 'run:' .. whole, 'counts', sum)
end

-- Rate and busy share of a run are the sums over the parts that are driven now.
function part.sum(r, whole, now)
  local rate, busy = 0, 0
  for _, one in ipairs(redis.call('ZRANGEBYSCORE', r .. 'open:' .. whole, '(' .. now, '+inf')) do
    local speed = redis.call('HMGET', r .. 'run:' .. one, 'rate', 'busy')
    rate, busy = rate + (tonumber(speed[1] or 0) or 0), busy + (tonumber(speed[2] or 0) or 0)
  end
  redis.call('HSET', r .. 'run:' .. whole, 'rate', rate, 'busy', math.min(1, busy))
  if redis.call('HGET', r .. 'run:' .. whole, 'state') == 'queued' then redis.call('HSET', r .. 'run:' .. whole, 'state', 'running') end
end

-- Whether the run belongs to another owner than asked for. `whose` is '=' and the owner, or empty for any owner.
local function not_theirs(owner, whose) return whose ~= '' and '=' .. owner ~= whose end

-- Whether the owner has so many runs that have not ended (0 = no limit). What a call that failed half-way has left does not count.
function part.is_full(r, owner, most)
  if most == 0 then return false end
  local live = live_of(r, owner)
  if redis.call('ZCARD', live) < most then return false end
  for _, id in ipairs(redis.call('ZRANGE', live, 0, -1)) do
    if part.has_ended(r, id) then redis.call('ZREM', live, id) end
  end
  return redis.call('ZCARD', live) >= most
end

-- run_room: whether an owner may have another run.
-- ARGS: owner, most runs of it that have not ended
-- REPLY: 1 | 0
function part.run_room(keys, args) return part.is_full(keys[1], args[1], tonumber(args[2])) and 0 or 1 end

-- run_create: store a new run, unless its id is taken; forget runs that ended long ago.
-- ARGS: id, owner, spec, ms that ended runs are kept, ms until its deadline (0 = none), command that drives it (empty: runners),
--       most runs of the owner that have not ended (0 = no limit), words (as in submit; mostly empty)
-- REPLY: created | existing, the record | full
local function run_create(keys, args, todo)
  local r, now, id, owner = keys[1], now_ms(), args[@run_create.id], args[@run_create.owner]
  forget_old(r, args[@run_create.keep], now, todo)
  local existing_run = record_of(r, id)
  if existing_run then return {'existing', existing_run} end
  if part.is_full(r, owner, tonumber(args[@run_create.most])) then return {'full', false} end -- guard:owner_runs
  -- The record last: an entry without a record is passed over, a record without its entries would never be driven.
  for _, index in ipairs({'index', 'of:' .. owner, 'live', 'live:' .. owner}) do redis.call('ZADD', r .. index, now, id) end
  local deadline = tonumber(args[@run_create.deadline])
  if deadline > 0 then redis.call('ZADD', r .. 'due', now + deadline, id) end
  redis.call('ZADD', r .. 'driven', now, id)
  local more = args[@run_create.command] ~= '' and {'command', args[@run_create.command]} or {}
  hooks.drafted(r, args, @run_create.words, owner, {}, more)
  hooks.submitted(r, args, @run_create.words, id, owner, 'created', todo)
  flush(r, todo)
  redis.call('HSET', r .. 'run:' .. id, 'owner', owner, 'spec', args[@run_create.spec], 'state', 'queued', 'created', now,
    unpack(more))
  join_line(r, id, now)
  return {'created', record_of(r, id)}
end

-- run_take: make a driver the holder of a run; end a run whose last drivers died without getting any further.
-- ARGS: id, driver, lease ms, the driver that is known to be dead (empty: none)
-- REPLY: taken | held (by another driver) | final (it has ended, or the run of the part has) | missing, the record
local function run_take(keys, args, todo)
  local r, now, id, driver = keys[1], now_ms(), args[1], args[2]
  local key = r .. 'run:' .. id
  local state, holder, till, drives, request, command, owner, whole = unpack(redis.call('HMGET', key, 'state', 'driver', 'until',
    'drives', 'request', 'command', 'owner', 'part_of'))
  if not state then return {'missing', false} end
  if ENDED[state] and whole then redis.call('ZREM', r .. 'open:' .. whole, id) end -- an end that failed half-way has left it
  if ENDED[state] or whole and part.has_ended(r, whole) then return {'final', record_of(r, id)} end -- guard:part_of_ended
  local other = holder ~= driver
  if holder and other and holder ~= args[4] and tonumber(till) > now then return {'held', record_of(r, id)} end -- guard:run_held
  if other and tonumber(drives or 0) >= MOST_DRIVES then -- guard:run_spent
    redis.call('HSET', key, 'code', LOST_CODE, 'message', LOST_WHY)
    part.finish(r, id, whole, request == 'cancel' and 'cancelled' or 'failed', now, todo)
    return {'final', record_of(r, id)}
  end
  redis.call('HSET', key, 'driver', driver, 'until', now + args[3])
  if other then redis.call('HINCRBY', key, 'drives', 1) end
  if not command then redis.call('ZADD', r .. 'turns', 'XX', last_turn(r, now), owner) end
  hold(r, id, owner, command, now + args[3], whole)
  return {'taken', record_of(r, id)}
end

-- run_split: give a run its parts, once; a repeat changes nothing.
-- ARGS: id, driver, counts of the run, number of parts; per part: id, part
-- REPLY: ok | lost | final | missing
function part.run_split(keys, args)
  local r, id = keys[1], args[1]
  local key = r .. 'run:' .. id
  local state, holder, owner, command, created, version, parts = unpack(redis.call('HMGET', key, 'state', 'driver', 'owner',
    'command', 'created', 'version', 'parts'))
  if not state then return 'missing' end
  if holder ~= args[2] then return 'lost' end -- guard:split_fence
  if ENDED[state] then return 'final' end
  if parts then return 'ok' end -- guard:split_once
  local more = command and {'command', command} or {}
  append(more, {'version', version or ''})
  for i = 5, #args, 2 do
    -- The record goes last: the call that forgets the run finds it by its place.
    redis.call('ZADD', r .. 'parts:' .. id, (i - 5) / 2, args[i])
    redis.call('ZADD', r .. 'open:' .. id, 0, args[i])
    redis.call('HSET', r .. 'run:' .. args[i], 'owner', owner, 'state', 'queued', 'created', created, 'part_of', id, 'part',
      args[i + 1], unpack(more))
  end
  -- Last: until it is written, the split is repeated from its beginning.
  redis.call('HSET', key, 'parts', args[4], 'counts', args[3])
  return 'ok'
end

-- run_update: write changes of the record and extend the driver's lease.
-- ARGS: id, driver, lease ms (0 = leave the run), rows finished; per change: field, value
-- REPLY: ok | cancel (written, and a cancel was asked for) | leave (written, and the run of this part has ended) | lost | final |
--        missing
local function run_update(keys, args, todo)
  local r, now, id = keys[1], now_ms(), args[1]
  local key = r .. 'run:' .. id
  local state, holder, request, command, owner, whole, parts = unpack(redis.call('HMGET', key, 'state', 'driver', 'request',
    'command', 'owner', 'part_of', 'parts'))
  if not state then return 'missing' end
  if holder ~= args[2] then return 'lost' end -- guard:run_fence
  if ENDED[state] then return 'final' end -- guard:run_final
  local wanted, changes = state, {}
  for i = 5, #args, 2 do
    if args[i] == 'state' then wanted = args[i + 1] else append(changes, {args[i], args[i + 1]}) end
    if whole and args[i] == 'counts' then part.count(r, id, whole, args[i + 1]) end
  end
  -- The drivers of parts learn of the change only by the state of their run.
  if parts and request == 'cancel' and tonumber(args[3]) == 0 and not ENDED[wanted] then wanted = 'cancelled' end
  if not ENDED[wanted] then append(changes, {'state', wanted}) end -- an end is written with its event
  hold(r, id, owner, command, now + args[3], whole)
  if tonumber(args[4]) > tonumber(redis.call('HGET', key, 'most') or 0) then
    redis.call('HSET', key, 'most', args[4], 'drives', 0)
  elseif tonumber(args[3]) == 0 then
    redis.call('HSET', key, 'drives', 0)
  end
  if wanted ~= 'queued' then redis.call('HSETNX', key, 'started', now) end
  redis.call('HSET', key, 'until', now + args[3], unpack(changes))
  if ENDED[wanted] then part.finish(r, id, whole, wanted, now, todo) end
  if whole then
    if part.has_ended(r, whole) then return 'leave' end
    part.sum(r, whole, now)
  end
  return request == 'cancel' and 'cancel' or 'ok'
end

function part.reopen(r, id)
  for _, one in ipairs(redis.call('ZRANGE', r .. 'parts:' .. id, 0, -1)) do
    local state = redis.call('HGET', r .. 'run:' .. one, 'state')
    if state ~= 'completed' then
      redis.call('ZADD', r .. 'open:' .. id, 'NX', 0, one)
      if ENDED[state] then
        redis.call('HDEL', r .. 'run:' .. one, 'driver', 'until', 'finished')
        redis.call('HSET', r .. 'run:' .. one, 'state', 'queued')
      end
      redis.call('HDEL', r .. 'run:' .. one, 'request', 'code', 'message', 'drives', 'most')
    end
  end
end

-- run_reopen: queue a run again that ended without being completed.
-- ARGS: id, spec with which it goes on (empty: as before, else also if it has not ended)
-- REPLY: reopened | live | completed | missing
local function run_reopen(keys, args)
  local r, now, id = keys[1], now_ms(), args[1]
  local key = r .. 'run:' .. id
  local run = read_fields(key, {'state', 'owner', @fields.reopened})
  local state = run.state
  if not state then return 'missing' end
  if args[2] ~= '' and state ~= 'completed' then redis.call('HSET', key, 'spec', args[2]) end
  if not ENDED[state] then return 'live' end
  if state == 'completed' then return 'completed' end
  for _, live in ipairs({'live', 'live:' .. run.owner}) do redis.call('ZADD', r .. live, redis.call('HGET', key, 'created'), id) end
  -- Until it stands in its line: if a call fails before, the next look gives it its place, as it does a run without a driver.
  redis.call('ZADD', r .. 'driven', now, id)
  part.reopen(r, id)
  redis.call('HDEL', key, 'finished', 'request', 'code', 'message', 'driver', 'until', 'drives', 'most')
  redis.call('HSET', key, 'state', 'queued')
  hooks.reopened(r, id, run) -- guard:reopened
  redis.call('ZREM', r .. 'final', id)
  join_line(r, id, now)
  return 'reopened'
end

-- run_ask: ask that a run be cancelled.
-- ARGS: id, whose
-- REPLY: cancelled (it had no driver) | requested | final | missing
local function run_ask(keys, args, todo)
  local r, now, id = keys[1], now_ms(), args[1]
  local state, owner, till, parts = unpack(redis.call('HMGET', r .. 'run:' .. id, 'state', 'owner', 'until', 'parts'))
  if not state or not_theirs(owner, args[2]) then return 'missing' end
  if ENDED[state] then return 'final' end
  redis.call('HSET', r .. 'run:' .. id, 'request', 'cancel')
  -- The driver of a part learns that its run has ended, and leaves the part at its last commit.
  if not parts and state ~= 'queued' or tonumber(till or 0) > now then return 'requested' end
  end_run(r, id, 'cancelled', now, todo)
  return 'cancelled'
end

-- run_read: one run's record.
-- ARGS: id
-- REPLY: now ms, the record (nil if unknown)
local function run_read(keys, args) return {now_ms(), record_of(keys[1], args[1])} end

-- A run, if a list that begins behind `before` (nil = at the newest) shows it, and whether it stands behind it.
function part.shown(r, id, after, before, whose, text, wanted)
  local state, created, owner, spec = unpack(redis.call('HMGET', r .. 'run:' .. id, 'state', 'created', 'owner',
    text ~= '' and 'spec' or 'state'))
  if not state then return false, true end
  if before and (tonumber(created) > before or tonumber(created) == before and id >= after) then return false, false end
  local is_asked = (not wanted or wanted[state]) and not not_theirs(owner, whose)
  return is_asked and (text == '' or string.find(spec, text, 1, true)) and record_of(r, id), true
end

-- run_list: a page of runs, newest first; empty if the id to start behind is not known (any more).
-- ARGS: ms that ended runs are kept, whose, id to start behind ('' = newest), limit, text that the spec has ('' = any);
--       per wanted state (none = all): state
-- REPLY: now ms, the id behind which the list goes on ('' = it has ended); per run: id, record
local function run_list(keys, args, todo)
  local r, now, whose, after, limit, text = keys[1], now_ms(), args[2], args[3], tonumber(args[4]), args[5]
  forget_old(r, args[1], now, todo)
  local wanted, live = #args > 5 and {}, #args > 5
  for i = 6, #args do
    wanted[args[i]] = true
    if ENDED[args[i]] then live = false end
  end
  local owner = string.sub(whose, 2)
  local index = live and (whose ~= '' and live_of(r, owner) or r .. 'live') or r .. (whose ~= '' and 'of:' .. owner or 'index')
  local before = after ~= '' and tonumber(redis.call('HGET', r .. 'run:' .. after, 'created') or -1)
  local at = (before and redis.call('ZCOUNT', index, '-inf', before) or redis.call('ZCARD', index)) - 1
  local reply, seen = {now, ''}, 0
  while at >= 0 do
    local page = redis.call('ZRANGE', index, math.max(0, at - PAGE + 1), at)
    for i = #page, 1, -1 do
      if #reply >= 2 + 2 * limit or seen == MOST_SEEN then return reply end -- guard:list_bound
      local run, is_behind = part.shown(r, page[i], after, before, whose, text, wanted)
      if is_behind then seen, reply[2] = seen + 1, page[i] end
      if run then append(reply, {page[i], run}) end
    end
    at = at - PAGE
  end
  reply[2] = ''
  return reply
end

-- run_parts: the parts of a run in their order.
-- ARGS: id
-- REPLY: now ms; per part: id, record
function part.run_parts(keys, args)
  local r, reply = keys[1], {now_ms()}
  for _, one in ipairs(redis.call('ZRANGE', r .. 'parts:' .. args[1], 0, -1)) do
    local record = record_of(r, one)
    if record then append(reply, {one, record}) end
  end
  return reply
end

-- The oldest thing to take of an owner's runs, and its record; an owner without one goes behind the others.
function part.first_of(r, owner, now, without)
  for _, id in ipairs(redis.call('ZRANGE', r .. 'waits:' .. owner, 0, PAGE - 1)) do
    if part.has_ended(r, id) then
      leave_line(r, id, owner) -- what a call that failed half-way has left
    elseif not without[id] then
      local takeable = part.takeable(r, id, now)
      if takeable then return takeable, record_of(r, takeable) end
    end
  end
  if redis.call('EXISTS', r .. 'waits:' .. owner) == 0 then redis.call('ZREM', r .. 'turns', owner)
  else redis.call('ZADD', r .. 'turns', last_turn(r, now), owner) end
end

-- run_next: what a driver may take of one run, also if a command drives it.
-- ARGS: id
-- REPLY: now ms; id, record
function part.run_next(keys, args)
  local r, now, id = keys[1], now_ms(), args[1]
  local state, till = unpack(redis.call('HMGET', r .. 'run:' .. id, 'state', 'until'))
  local takeable = state and not ENDED[state] and tonumber(till or 0) <= now and part.takeable(r, id, now)
  return takeable and {now, takeable, record_of(r, takeable)} or {now}
end

-- run_look: runs that a runner may take, owners in turns, each one's oldest first; queued runs past their deadline end here.
-- ARGS: limit; per run to pass over: id
-- REPLY: now ms; per run: id, record
local function run_look(keys, args, todo)
  local r, now, limit, reply, without = keys[1], now_ms(), tonumber(args[1]), {}, {}
  for i = 2, #args do without[args[i]] = true end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', r .. 'driven', '-inf', now, 'LIMIT', 0, PAGE)) do join_line(r, id, now) end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', r .. 'due', '-inf', now, 'LIMIT', 0, PAGE)) do
    redis.call('ZREM', r .. 'due', id)
    -- A run that has begun is ended by its driver, which publishes what there is.
    if redis.call('HGET', r .. 'run:' .. id, 'state') == 'queued' then end_run(r, id, 'expired', now, todo) end
  end
  reply[1] = now
  for _, owner in ipairs(limit > 0 and redis.call('ZRANGE', r .. 'turns', 0, limit + PAGE) or {}) do
    local id, run = part.first_of(r, owner, now, without)
    if id then reply[#reply + 1], reply[#reply + 2] = id, run end
    if #reply > 2 * limit then break end
  end
  return reply
end

-- run_drop: forget an ended run.
-- ARGS: id, whose
-- REPLY: dropped | live (not ended: nothing was done) | missing
local function run_drop(keys, args, todo)
  local r, id = keys[1], args[1]
  local state, owner = unpack(redis.call('HMGET', r .. 'run:' .. id, 'state', 'owner'))
  if not state or not_theirs(owner, args[2]) then return 'missing' end
  if not ENDED[state] then return 'live' end
  forget(r, id, todo)
  return 'dropped'
end

register('run_create', run_create, {})
register('run_take', run_take, {'allow-oom'})
register('run_update', run_update, {'allow-oom'})
register('run_reopen', run_reopen, {'allow-oom'})
register('run_ask', run_ask, {'allow-oom'})
register('run_room', part.run_room, {'allow-oom'})
register('run_read', run_read, {'no-writes', 'allow-stale'})
register('run_list', run_list, {'allow-oom'})
register('run_look', run_look, {'allow-oom'})
register('run_split', part.run_split, {'allow-oom'})
register('run_parts', part.run_parts, {'no-writes', 'allow-stale'})
register('run_next', part.run_next, {'no-writes', 'allow-stale'})
register('run_drop', run_drop, {'allow-oom'})
end
