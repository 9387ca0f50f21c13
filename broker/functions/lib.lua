-- Shared by every function of the library. The loader puts `#!lua name=...` and SUFFIX in front, the transitions behind.
--
-- KEYS[1] of every function is `ps:{model}:` unless its header says otherwise; all other keys are built from it and carry the same
-- hash tag, so a function stays in one Redis Cluster slot. (celery-task-meta-* is the exception: stock Celery cannot use a cluster.)
--
--   job:<serial>      hash    the record; the truth. Its field `terms` holds three numbers, because one field is cheaper: most
--                             attempts, most crashes, and how many jobs stood before it, if any
--   in:<serial>       string  inline input            out:<serial>   string  inline output; up to 64 bytes they are fields
--                             `in` and `out` of the record, because a key of its own would take more memory than the value
--   ready:<version>   zset    serial -> band * 2^42 + deadline in ms: the order of the queue; jobs with an owner stand in a
--                             line of their own, ready:<version>:<owner>
--   shards:<version>  zset    as ready, for jobs that each hold many rows (call 'shard'): claimed one by one, never with others
--   turns:<version>:<band>    zset  owner -> number: the order of owners in this band, kept only while jobs with an owner wait
--   solo:<version>    zset    suspects, each to be run alone. Those that crashed a child: serial -> created. Behind them those that
--                             lost workers: serial -> 2^42 + `solo_clock` (counters: claims served while such suspects waited)
--   reconciled        string  there while the last page was reconciled a moment ago; reconcile_from: where the next one begins
--   solo_due          hash    version -> the first deadline in its line of suspects, or an earlier moment
--   delayed           zset    serial -> due, at the latest its deadline
--   final          zset    serial -> when to collect it
--   leases            zset    worker -> lease end     held:<worker>  hash    serial -> leased at, below 0 for a shard
--   look              string  the sweeper that looks for missing lease holders just now
--   missing           hash    lease holder without a subscription -> since when it was seen so
--   index             zset    every serial, score 0   outbox         zset    serial -> finished at: ends not yet published
--   inbox             zset    serials that ended failed, dead or expired and were not replayed, score 0
--   versions          set     versions ever queued    counters       hash    accepted, ended:<state>, redelivered:<why>, ...
--   idem:<digest>     string  serial + fingerprint    tomb:<serial>  string  owner of a job that existed and was collected
--   foreign           hash    stock Celery message -> handed out at
--   open              hash    owner -> jobs of theirs that have not ended; the empty owner is not counted
--   want              string  queue length at which an idle worker asked to be woken
-- The ticket lists `penstock.{model}`, ...\x06\x166 and ...\x06\x169 hold one ticket per waiting job of band 0 (with solo), 6 and 9.

local WEIGHT = 4398046511104 -- 2^42: above any Unix time in ms until the year 2109
local BANDS = {0, 6, 9}
local LATE = 6
-- A lost worker is rarely the job's fault and costs the job no attempt; but a job that loses worker after worker runs alone, and at
-- last never again. Losses in a row count, with no other worker of the model lost in between: a storm of losses hits all jobs in turn.
local SUSPECT_LOSSES = 2
local MAX_LOST_IN_A_ROW = 10
local MAX_LOSSES = 25 -- in a row or not: two jobs that both lose workers would otherwise excuse each other for ever
local SHARD_BAND = 9
local TICKET = 't'
-- A record keeps this many of a job's first and last attempts; of those between it keeps the sums.
local PAST_FIRST, PAST_LAST = 3, 5
local SMALL = 64 -- hash-max-listpack-value: a longer field would cost the record its compact form
local META_TTL_MS = 86400000
local TOMB_MIN_MS, TOMB_MAX_MS = 60000, 86400000
local RECORD = {'state', 'version', 'band', 'created', 'deadline', 'ttl', 'owner', 'media', 'blob', 'terms',
  'attempts', 'crashes', 'epoch', 'token', 'final_token', 'started', 'finished', 'cancel', 'code', 'message', 'stamp', 'worker',
  'out_media', 'out_blob', 'watch', 'celery', 'past', 'more', 'trace', 'replay_of', 'replayed_as', 'call'}

local function register(name, callback, flags)
  redis.register_function{function_name = 'penstock_' .. name .. '_' .. SUFFIX, callback = callback, flags = flags}
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function model_of(p) return string.match(p, '{(.-)}') end

local function tickets(p, band)
  local name = 'penstock.{' .. model_of(p) .. '}'
  if band == 0 then return name end
  return name .. '\6\22' .. band
end

local function shards_of(p, version) return p .. 'shards:' .. version end

-- The number of waiting jobs, and of those in the bulk band.
local function depth(p)
  local bulk = redis.call('LLEN', tickets(p, SHARD_BAND))
  return redis.call('LLEN', tickets(p, 0)) + redis.call('LLEN', tickets(p, 6)) + bulk, bulk
end

-- The number of shards among `bulk` waiting jobs of the bulk band. If there are none of these, mostly, nothing is looked up.
local function shards_among(p, bulk)
  local shards = 0
  if bulk == 0 then return shards end
  for _, version in ipairs(redis.call('SMEMBERS', p .. 'versions')) do
    shards = shards + redis.call('ZCARD', shards_of(p, version))
  end
  return shards
end

-- The number of waiting jobs that ordinary claims can take, and of waiting shards.
local function ordinary_depth(p)
  local all, bulk = depth(p)
  local shards = shards_among(p, bulk)
  return all - shards, shards
end

-- Writes that nothing later in the same call reads are gathered in `todo` and sent together by `flush`: one Redis command per key
-- for a whole batch. `todo.tally` holds counters, `todo.pushes` messages to gateways, `todo.changes` the changes to report to the
-- caller, `todo.store` and `todo.drop` values to set and keys to delete; all other entries are commands, by name and key and in
-- the order in which they came.
-- D20: docs/design/store.md
local function later(todo, command, key, ...)
  local id = command .. key
  local list = todo[id]
  if not list then
    list = {command = command, key = key, id = id}
    todo[id], todo[#todo + 1] = list, list
  end
  for i = 1, select('#', ...) do list[#list + 1] = (select(i, ...)) end
end

local function store(todo, key, value)
  todo.store = todo.store or {}
  local n = #todo.store
  todo.store[n + 1], todo.store[n + 2] = key, value
end

local function drop(todo, key)
  todo.drop = todo.drop or {}
  todo.drop[#todo.drop + 1] = key
end

-- Send one command for a whole list. Lua passes at most about 8,000 values to one call, and a call that fails there would be half
-- done, so a long list goes in parts; their size is even, which keeps pairs together.
local PART = 4000
local function send(command, key, values)
  for from = 1, #values, PART do
    local to = math.min(from + PART - 1, #values)
    if key then redis.call(command, key, unpack(values, from, to)) else redis.call(command, unpack(values, from, to)) end
  end
end

local function count(todo, what, n)
  todo.tally = todo.tally or {}
  todo.tally[what] = (todo.tally[what] or 0) + n
end

local function count_open(todo, owner, n)
  if not owner or owner == '' then return end
  todo.open = todo.open or {}
  todo.open[owner] = (todo.open[owner] or 0) + n
end

-- Report a change that is not a settling by the job's holder: the caller logs it. Six values: event, serial, state, version, token,
-- trace.
local function tell(todo, what, serial, state, job)
  todo.changes = todo.changes or {}
  local n = #todo.changes
  todo.changes[n + 1], todo.changes[n + 2], todo.changes[n + 3] = what, serial, state
  todo.changes[n + 4], todo.changes[n + 5], todo.changes[n + 6] = job.version, job.token or '', job.trace or ''
end

local function append(reply, list)
  for _, value in ipairs(list or {}) do reply[#reply + 1] = value end
end

local function add_up(key, counts)
  for what, n in pairs(counts or {}) do
    if n ~= 0 then redis.call('HINCRBY', key, what, n) end
    counts[what] = nil
  end
end

local function flush(p, todo)
  if todo.store then send('MSET', nil, todo.store) end
  todo.store = nil
  while todo[1] do
    send(todo[1].command, todo[1].key, todo[1])
    todo[table.remove(todo, 1).id] = nil
  end
  if todo.drop then send('DEL', nil, todo.drop) end
  add_up(p .. 'counters', todo.tally)
  add_up(p .. 'open', todo.open)
  for channel, list in pairs(todo.pushes or {}) do redis.call('PUBLISH', channel, table.concat(list)) end
  todo.drop, todo.tally, todo.open, todo.pushes, todo.changes = nil, nil, nil, nil, nil
end

local function push_tickets(p, band, n)
  for _ = 1, n do redis.call('LPUSH', tickets(p, band), TICKET) end
end

-- Remove n tickets. Stock Celery messages among them are kept in `foreign` until a worker has stored them as jobs.
local function pop_tickets(p, band, n, now)
  while n > 0 do
    local popped = redis.call('RPOP', tickets(p, band), n)
    if not popped then return end
    for _, entry in ipairs(popped) do
      if entry == TICKET then n = n - 1 else redis.call('HSETNX', p .. 'foreign', entry, 0) end
    end
  end
end

local function band_of(score) return math.floor(score / WEIGHT) end

local function line_of(p, version, owner, call)
  if call == 'shard' then return shards_of(p, version) end -- guard:shard_line
  if not owner or owner == '' then return p .. 'ready:' .. version end
  return p .. 'ready:' .. version .. ':' .. owner
end

local function turns_of(p, version, band) return p .. 'turns:' .. version .. ':' .. band end

-- Wake the slots if the queue has the length that an idle slot asked for, or if shards came: slots hear of shards in no other way.
local function wake(p, shards_came)
  local want = redis.call('GET', p .. 'want')
  local due = want and ordinary_depth(p) >= tonumber(want) -- guard:want
  if due then redis.call('DEL', p .. 'want') end
  if due or shards_came then redis.call('PUBLISH', p .. 'wake', 'w') end
end

-- Give the owner the last turn, unless the owner has one. Returns whether there was none.
local function take_turn(p, version, band, owner)
  local turns = turns_of(p, version, band)
  local last = redis.call('ZRANGE', turns, -1, -1, 'WITHSCORES')[2] or 0
  return redis.call('ZADD', turns, 'NX', last + 1, owner) == 1
end

local function enqueue(p, serial, job)
  local band = tonumber(job.band)
  redis.call('ZADD', line_of(p, job.version, job.owner, job.call), band * WEIGHT + job.deadline, serial)
  if job.call ~= 'shard' and job.owner and job.owner ~= '' then take_turn(p, job.version, band, job.owner) end
  redis.call('SADD', p .. 'versions', job.version)
  push_tickets(p, band, 1)
  if job.call == 'shard' then wake(p, true) end
end

-- A suspect that lost workers goes behind all other suspects: at the head of the line it would also be the first to meet the next
-- loss.
local function enqueue_solo(p, serial, job)
  local place = job.created
  if job.losses > 0 then place = WEIGHT + (redis.call('HGET', p .. 'counters', 'solo_clock:' .. job.version) or 0) end -- guard:solo_place
  redis.call('ZADD', p .. 'solo:' .. job.version, place, serial)
  local due = redis.call('HGET', p .. 'solo_due', job.version)
  if not due or tonumber(job.deadline) < tonumber(due) then redis.call('HSET', p .. 'solo_due', job.version, job.deadline) end
  redis.call('SADD', p .. 'versions', job.version)
  push_tickets(p, 0, 1)
end

-- Queue a job again after a lease or a delay. A job that crashed once or lost workers twice is a suspect and runs alone.
local function requeue(p, serial, job)
  if job.crashes > 0 or job.losses >= SUSPECT_LOSSES then
    enqueue_solo(p, serial, job)
  else
    enqueue(p, serial, job)
  end
end

-- Take a waiting job out of ready, solo or delayed; returns the one it was found in, or nil.
local function dequeue(p, serial, job, now)
  local line = line_of(p, job.version, job.owner, job.call)
  local score = redis.call('ZSCORE', line, serial)
  if score then
    redis.call('ZREM', line, serial)
    pop_tickets(p, band_of(tonumber(score)), 1, now)
    return 'ready'
  end
  if redis.call('ZREM', p .. 'solo:' .. job.version, serial) == 1 then
    pop_tickets(p, 0, 1, now)
    return 'solo'
  end
  if redis.call('ZREM', p .. 'delayed', serial) == 1 then return 'delayed' end
end

-- Eight texts, each behind its length, packed in one call: packing them one by one takes three times as long.
local function frame(a, b, c, d, e, f, g, h)
  return struct.pack('>I4c0I4c0I4c0I4c0I4c0I4c0I4c0I4c0', #a, a, #b, b, #c, c, #d, d, #e, e, #f, f, #g, g, #h, h)
end

-- Push a change to the job's watchers. A watcher is a channel behind a mark: '=' wants the end only, '+' every change. All changes
-- of one call go in one message per channel, so that a settled batch wakes a gateway once.
-- D6: docs/design/store.md
local function push_change(todo, p, watch, final, ...)
  if not watch or watch == '' then return end
  todo.pushes = todo.pushes or {}
  local change
  for mark, channel in string.gmatch(watch, '([=+])([^,]+)') do
    if final or mark == '+' then
      change = change or frame(...)
      local list = todo.pushes[channel] or {struct.pack('>I4c0', #model_of(p), model_of(p))}
      list[#list + 1] = change
      todo.pushes[channel] = list
    end
  end
end

local function celery_meta(p, serial, celery, state, media, output, code, message)
  local key = 'celery-task-meta-' .. celery
  local status, result = 'SUCCESS', nil
  if state == 'succeeded' then
    result = output
    if media ~= 'application/json' or not output or output == '' then
      result = cjson.encode({job = serial .. '-' .. model_of(p), content_type = media})
    end
  else
    status = (state == 'cancelled' or state == 'expired') and 'REVOKED' or 'FAILURE'
    local kind = status == 'REVOKED' and 'TaskRevokedError' or 'PenstockError'
    local home = status == 'REVOKED' and 'celery.exceptions' or 'penstock.errors'
    result = cjson.encode({exc_type = kind, exc_message = {code .. ': ' .. message}, exc_module = home})
  end
  local meta = '{"status":"' .. status .. '","result":' .. result .. ',"traceback":null,"children":[],"task_id":'
    .. cjson.encode(celery) .. '}'
  redis.call('SET', key, meta, 'PX', META_TTL_MS)
  redis.call('PUBLISH', key, meta)
end

local function drop_input(p, serial, small, todo)
  if small then redis.call('HDEL', p .. 'job:' .. serial, 'in') else drop(todo, p .. 'in:' .. serial) end
end

-- The one way into a final state. `job` holds at least ttl, watch, celery, owner and in; the caller has taken it out of ready, solo,
-- delayed or held. `last` may have media, output, blob, code, message, stamp and token; absent ones count as empty.
local function end_job(p, serial, job, state, now, todo, last)
  local media, blob = last.media or '', last.blob or ''
  local code, message = last.code or '', last.message or ''
  local key = p .. 'job:' .. serial
  if state == 'succeeded' then
    local small = blob == '' and #last.output <= SMALL
    redis.call('HSET', key, 'state', state, 'finished', now, 'token', '', 'final_token', last.token, 'stamp', last.stamp,
      'out_media', media, small and 'out' or 'out_blob', small and last.output or blob)
    if job.code then redis.call('HDEL', key, 'code', 'message') end
    if blob == '' and not small then store(todo, p .. 'out:' .. serial, last.output) end
  else
    redis.call('HSET', key, 'state', state, 'finished', now, 'token', '', 'final_token', last.token or '', 'stamp', last.stamp or '',
      'code', code, 'message', message)
    if state ~= 'cancelled' then later(todo, 'ZADD', p .. 'inbox', 0, serial) end
  end
  -- A failed, dead or expired job keeps its input for a replay; other jobs no longer need theirs (D13: docs/design/store.md).
  if state == 'succeeded' or state == 'cancelled' then drop_input(p, serial, job['in'], todo) end
  later(todo, 'ZADD', p .. 'outbox', now, serial)
  later(todo, 'ZADD', p .. 'final', now + job.ttl, serial)
  count_open(todo, job.owner, -1)
  if not last.token then tell(todo, 'finished', serial, state, job) end -- no holder reports it
  push_change(todo, p, job.watch, true, serial, state, media, last.output or '', blob, code, message, last.stamp or '')
  if job.celery and job.celery ~= '' then
    celery_meta(p, serial, job.celery, state, media, last.output, code, message)
  end
end

local function load_job(p, serial, fields)
  local values = redis.call('HMGET', p .. 'job:' .. serial, unpack(fields))
  local job = {}
  for i, field in ipairs(fields) do job[field] = values[i] end
  job.attempts, job.crashes, job.losses = tonumber(job.attempts or 0), tonumber(job.crashes or 0), tonumber(job.losses or 0)
  if job.terms then
    local attempts, crashes = string.match(job.terms, '^(%d+),(%d+)')
    job.max_attempts, job.max_crashes = tonumber(attempts), tonumber(crashes)
  end
  job.in_a_row = tonumber(job.in_a_row or 0)
  return job
end

-- Drop an ended job's record and output; returns the names of its blobs, its owner, and for how many ms its result was to be kept.
local function drop_job(p, serial)
  local key, blobs = p .. 'job:' .. serial, {}
  local input, output, owner, ttl, code = unpack(redis.call('HMGET', key, 'blob', 'out_blob', 'owner', 'ttl', 'code'))
  for _, ref in ipairs({input or '', output or ''}) do
    if ref ~= '' then blobs[#blobs + 1] = ref end
  end
  redis.call('DEL', key, p .. 'in:' .. serial, p .. 'out:' .. serial)
  for _, index in ipairs({'final', 'index', 'outbox'}) do redis.call('ZREM', p .. index, serial) end
  if code then redis.call('ZREM', p .. 'inbox', serial) end
  return blobs, owner or '', tonumber(ttl or 0)
end

-- Note an attempt that ended without ending the job, while the record still has the attempt's token. Entries of `past` are
-- `token,claimed,ended,how,delay` joined by `;`, moments and delay in ms; `more` has the sums of attempts left out: count, time
-- spent, delays.
local function note_past(p, serial, now, how, delay)
  local key, past = p .. 'job:' .. serial, {}
  local token, started, before, more = unpack(redis.call('HMGET', key, 'token', 'started', 'past', 'more'))
  for entry in string.gmatch(before or '', '[^;]+') do past[#past + 1] = entry end
  past[#past + 1] = table.concat({string.gsub(token, '[,;]', '_'), started, now, how, delay or 0}, ',')
  if #past > PAST_FIRST + PAST_LAST then
    local from, to, put_aside = string.match(table.remove(past, PAST_FIRST + 1), ',(%d+),(%d+),[a-z_]+,(%d+)$')
    local n, spent, delays = string.match(more or '0,0,0', '(%d+),(%d+),(%d+)')
    redis.call('HSET', key, 'more', table.concat({n + 1, spent + to - from, delays + put_aside}, ','))
  end
  redis.call('HSET', key, 'past', table.concat(past, ';'))
end

local ENDING = {'state', 'version', 'ttl', 'watch', 'celery', 'code', 'token', 'final_token', 'cancel', 'deadline', 'attempts', 'crashes',
  'losses', 'in_a_row', 'lost_in', 'terms', 'band', 'created', 'blob', 'in', 'owner', 'trace', 'call', 'worker'}

-- A record that is gone was evicted or deleted by hand, and nothing can be said of its job any more. Its places are cleared, so
-- that it holds up no other job, and it is counted. `ended`: the job had ended.
local function forget_gone(p, serial, todo, ended)
  for _, index in ipairs({'index', 'delayed', 'final', 'outbox', 'inbox'}) do later(todo, 'ZREM', p .. index, serial) end
  count(todo, 'gone', 1)
  if ended then count(todo, 'gone:ended', 1) end
end

local function expire_job(p, serial, job, now, todo)
  end_job(p, serial, job, 'expired', now, todo, {code = 'expired', message = 'the deadline passed before the job finished'})
  count(todo, 'ended:expired', 1)
end

local function cancel_job(p, serial, job, now, todo, token)
  end_job(p, serial, job, 'cancelled', now, todo, {code = 'cancelled', message = 'cancelled by request', token = token})
  count(todo, 'ended:cancelled', 1)
end

local function kill_job(p, serial, job, now, todo, code, message, token)
  end_job(p, serial, job, 'dead', now, todo, {code = code, message = message, token = token})
  count(todo, 'ended:dead', 1)
end

-- The fence: 'ok' if the caller holds the job, else the answer to the caller, and then nothing may be written.
local function fence(job, token)
  if not job.state then return 'stale' end
  if job.final_token and job.final_token ~= '' and job.final_token == token then return 'already' end
  if job.state ~= 'leased' then return 'stale' end -- guard:state
  if job.token ~= token then return 'stale' end -- guard:fence
  return 'ok'
end

-- A leased job whose run ended in a crash instead of a verdict runs alone next time, or is given up. `detail` may be nil or empty.
local function crash_job(p, serial, job, now, todo, token, detail)
  local crashes = job.crashes + 1
  note_past(p, serial, now, 'crashed')
  redis.call('HSET', p .. 'job:' .. serial, 'crashes', crashes)
  if crashes >= job.max_crashes or job.attempts - job.losses >= job.max_attempts then -- guard:crashes
    local last = detail and detail ~= '' and '; the last time: ' .. detail or ''
    kill_job(p, serial, job, now, todo, 'poison', 'the process running it died ' .. crashes .. ' times' .. last, token)
    return 'dead'
  end
  redis.call('HSET', p .. 'job:' .. serial, 'state', 'queued', 'token', '')
  enqueue_solo(p, serial, job)
  count(todo, 'redelivered:crashed', 1)
  return 'ok'
end
