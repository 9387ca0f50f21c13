-- submit: store new jobs of one model.
-- ARGS: max_depth, least idempotency ttl ms; per job: serial, version, band, deadline ms from now, result ttl ms, owner, media, input,
--       blob, idempotency digest, fingerprint, terms (most attempts and most crashes), watch, celery (see tasks_in), foreign message,
--       most open jobs of the owner (0 = no limit), call ('' | explain | shard), trace context, serial of the replayed job,
--       delay ms (0 = none; else the job is put aside until then), tags (joined by commas),
--       webhook (letters of the wanted events, endpoint, most undelivered events of the owner, URL; mostly empty)
-- REPLY: depth; per job: created | existing | key_reused | closed | full | quota | undelivered, serial. A closed queue takes no new
--        job, but for replays of its own jobs: they lie where what they repeat does.
-- LARGEST: SUBMIT_MAX jobs
-- Without allow-oom: at maxmemory this function is refused and admission stops, while finish and release still pass.
local SUBMIT_STRIDE = 22
-- A run that began before the deadline may end behind it. The key outlives the result, or a repeat would make a second job.
local RUN_PAST_DEADLINE_MS = 3600000
local SUBMIT_MAX = 1000

local function known(p, call, digest, fingerprint)
  if digest == '' then return end
  local first = call.keys[digest] or redis.call('GET', p .. 'idem:' .. digest) -- guard:dedup
  if not first then return end
  return string.sub(first, 27) == fingerprint and 'existing' or 'key_reused', string.sub(first, 1, 26)
end

-- The serials that are stored already: their submit is repeated after a lost reply; and whether the queue is closed. Mostly one
-- call finds that there is nothing of this.
local function repeated(p, args)
  local keys, found = {p .. 'closed'}, {}
  for i = 3, #args, SUBMIT_STRIDE do keys[#keys + 1] = p .. 'job:' .. args[i] end
  if redis.call('EXISTS', unpack(keys)) == 0 then return found, false end
  for i = 3, #args, SUBMIT_STRIDE do found[args[i]] = redis.call('EXISTS', p .. 'job:' .. args[i]) == 1 end
  return found, redis.call('EXISTS', p .. 'closed') == 1
end

-- Fields that most jobs leave empty, and their positions behind the serial. An absent field means empty (or 0), which saves bytes
-- in memory and in the append-only file.
local OPTIONAL = {'owner', 5, 'blob', 8, 'watch', 12, 'celery', 13, 'call', 16, 'trace', 17, 'replay_of', 18, 'tags', 20}

-- The number of jobs in the line before a job that is about to be stored. Jobs of one call mostly share one score, so one ZCOUNT
-- serves them all: each job adds those of the same score that came before it, and the line itself is filled only at the end.
local function ahead_of(call, line, score)
  local places = call.places[line]
  if not places then
    places = {}
    call.places[line] = places
  end
  local ahead = places[score] or call.waiting > 0 and redis.call('ZCOUNT', line, '-inf', score) or 0
  places[score] = ahead + 1
  return ahead
end

-- The replayed job names the new one and leaves the inbox, because it has been dealt with. It may have been collected meanwhile.
local function link(p, todo, old, serial)
  if old == '' then return end
  local state, owner = unpack(redis.call('HMGET', p .. 'job:' .. old, 'state', 'owner'))
  if state then later(todo, 'HSET', p .. 'job:' .. old, 'replayed_as', serial) end
  later(todo, 'ZREM', p .. 'inbox', old)
  if owner then later(todo, 'ZREM', p .. 'inbox:' .. owner, old) end
end

local function join(p, call, version, band, owner)
  if owner == '' then return end
  local turn = turns_of(p, version, band) .. ':' .. owner
  if call.joined[turn] then return end
  call.joined[turn] = true
  take_turn(p, version, band, owner)
end

-- The place of a job that is to run as soon as it can: a line, and the owner's turn there.
local function in_line(p, at, args, deadline, call)
  local version, band, owner, is_shard = args[at + 1], args[at + 2], args[at + 5], args[at + 16] == 'shard'
  local job = {at = at, line = line_of(p, version, owner, args[at + 16]), score = band * WEIGHT + deadline}
  job.ahead = ahead_of(call, job.line, job.score)
  if is_shard then call.shards = true else join(p, call, version, band, owner) end
  call.ready = call.ready or version
  return job
end

local HOOK = '^(%a*) (%w+) (%d+) (.+)$'

-- What a record says of the job's webhook: enough for its end to write the event without another look.
local function hook_fields(webhook)
  local wanted, endpoint, _, url = string.match(webhook, HOOK)
  return {'webhook', wanted .. ',' .. endpoint, 'hook_url', url}
end

-- Decide on one job that is to be stored: its place, and what its record will hold.
local function draft(p, todo, now, at, args, call)
  local serial, deadline, start = args[at], now + args[at + 3], now + args[at + 19]
  local job = start > now and {at = at, ahead = 0, start = start} or in_line(p, at, args, deadline, call) -- guard:start
  local record = {'state', job.start and 'delayed' or 'queued', 'version', args[at + 1], 'band', args[at + 2], 'created', now,
    'deadline', deadline, 'ttl', args[at + 4], 'media', args[at + 6],
    'terms', job.ahead > 0 and args[at + 11] .. ',' .. job.ahead or args[at + 11]}
  append(record, job.start and {'not_before', start})
  if args[at + 21] ~= '' then
    append(record, hook_fields(args[at + 21]))
    call.pending[args[at + 5]] = (call.pending[args[at + 5]] or 0) + 1
  end
  local n = #record
  for i = 1, #OPTIONAL, 2 do
    local value = args[at + OPTIONAL[i + 1]]
    if value ~= '' then
      record[n + 1], record[n + 2] = OPTIONAL[i], value
      n = n + 2
    end
  end
  local input, inline = args[at + 7], args[at + 8] == ''
  if inline and #input <= SMALL then
    record[n + 1], record[n + 2] = 'in', input
  elseif inline then store(todo, p .. 'in:' .. serial, input) end
  if args[at + 9] ~= '' then call.keys[args[at + 9]] = serial .. args[at + 10] end
  call.opened[args[at + 5]] = (call.opened[args[at + 5]] or 0) + 1
  job.record = record
  call.drafts[#call.drafts + 1] = job
  append(call.index, {0, serial})
end

-- Store the jobs that were decided on. `index` and inputs come first, because `reconcile` finds a job by its entry there; whatever
-- stands behind a record follows in one go, its key of idempotency before its place in line.
local function create(p, todo, now, args, call)
  if #call.drafts == 0 then return end
  todo.unborn = {}
  for i = 2, #call.index, 2 do todo.unborn[call.index[i]] = true end
  send_values(todo)
  send('ZADD', p .. 'index', call.index)
  for _, job in ipairs(call.drafts) do
    local at, serial = job.at, args[job.at]
    redis.call('HSET', p .. 'job:' .. serial, unpack(job.record))
    todo.unborn[serial] = nil
    count(todo, 'accepted', 1)
    count_open(todo, args[at + 5], 1)
    if job.start then plan_start(p, serial, args[at + 5], todo) end
    if args[at + 9] ~= '' then
      local kept = math.max(args[2], args[at + 3] + args[at + 4] + RUN_PAST_DEADLINE_MS)
      set_later(todo, p .. 'idem:' .. args[at + 9], serial .. args[at + 10], kept)
    end
    link(p, todo, args[at + 18], serial)
  end
  for _, job in ipairs(call.drafts) do
    local at, serial = job.at, args[job.at]
    if args[at + 5] ~= '' then
      later(todo, 'SADD', p .. 'owners', args[at + 5])
      later(todo, 'ZADD', p .. 'index:' .. args[at + 5], 0, serial)
    end
    if args[at + 21] ~= '' then later(todo, 'ZADD', p .. 'pending:' .. args[at + 5], 0, serial) end
    for _, entry in ipairs(tag_entries(args[at + 20], serial)) do
      for _, list in ipairs(tag_lists(p, args[at + 5])) do later(todo, 'ZADD', list, 0, entry) end
    end
    if job.start then later(todo, 'ZADD', p .. 'delayed', math.min(job.start, now + args[at + 3]), serial)
    else
      later(todo, 'ZADD', job.line, job.score, serial)
      later(todo, 'SADD', p .. 'versions', args[at + 1])
      later(todo, 'LPUSH', tickets(p, tonumber(args[at + 2])), TICKET)
    end
  end
  flush(p, todo)
  if not call.ready then return end
  if not call.shards then hand_over(p, call.ready) end
  wake(p, call.shards) -- guard:shard_wake
end

-- Whether the owner has as many open jobs as allowed. `call.opened` holds those that this call adds; the others are in the store.
local function spent(p, call, owner, most)
  if owner == '' or most == 0 then return false end
  local added = call.opened[owner] or 0
  return (redis.call('HGET', p .. 'open', owner) or 0) + added >= most -- guard:quota
end

-- Whether as many events of the owner as allowed are still to be delivered. Only then it is looked whether the first of them are of
-- records that somebody has deleted.
local function is_behind(p, call, owner, webhook)
  if webhook == '' then return false end
  local _, _, most = string.match(webhook, HOOK)
  local pending, added = p .. 'pending:' .. owner, call.pending[owner] or 0
  if redis.call('ZCARD', pending) + added < tonumber(most) then return false end -- guard:behind
  for _, id in ipairs(redis.call('ZRANGE', pending, 0, 3)) do
    if redis.call('EXISTS', p .. 'job:' .. id) == 0 then redis.call('ZREM', pending, id) end
  end
  return redis.call('ZCARD', pending) + added >= tonumber(most)
end

-- Whether the queue is at its limit. A job with a delay counts those put aside too, or there were no limit to them; the jobs of
-- now are not refused for the sake of later ones.
-- D74: docs/design/store.md
local function is_full(p, call, waiting, most, delay)
  if tonumber(delay) > 0 then waiting = waiting + redis.call('ZCARD', p .. 'delayed') + call.delayed end -- guard:delayed_depth
  return waiting >= most
end

local function submit(keys, args, todo)
  if #args > 2 + SUBMIT_MAX * SUBMIT_STRIDE then return redis.error_reply('ERR more than ' .. SUBMIT_MAX .. ' jobs in one submit') end
  local p, now = keys[1], now_ms()
  local waiting, reply, adopted = depth(p), {0}, {}
  local before, closed = repeated(p, args)
  local call = {places = {}, joined = {}, keys = {}, opened = {}, drafts = {}, index = {}, pending = {}, waiting = waiting,
    delayed = 0}
  for i = 3, #args, SUBMIT_STRIDE do
    local serial, foreign = args[i], args[i + 14]
    local status, first = known(p, call, args[i + 9], args[i + 10])
    if not status then
      first = serial
      if before[serial] then status = 'existing'
      elseif closed and args[i + 18] == '' then status = 'closed' -- guard:closed_queue
      elseif is_full(p, call, waiting, tonumber(args[1]), args[i + 19]) then status = 'full'
      elseif spent(p, call, args[i + 5], tonumber(args[i + 15])) then status = 'quota'
      elseif is_behind(p, call, args[i + 5], args[i + 21]) then status = 'undelivered'
      else
        draft(p, todo, now, i, args, call)
        before[serial], status = true, 'created'
        if tonumber(args[i + 19]) > 0 then call.delayed = call.delayed + 1 else waiting = waiting + 1 end
      end
    end
    if foreign ~= '' and status ~= 'full' and status ~= 'closed' then adopted[#adopted + 1] = foreign end
    reply[#reply + 1] = status
    reply[#reply + 1] = first
  end
  create(p, todo, now, args, call)
  send('ZREM', p .. 'foreign', adopted)
  reply[1] = waiting
  return reply
end

register('submit', submit, {})

-- close: take no new jobs from now on, because the model's new jobs go to another store; a full store is one to move away from.
-- ARGS: none
-- REPLY: ok
-- LARGEST: one mark
local function close(keys) return redis.call('SET', keys[1] .. 'closed', '1') end

register('close', close, {'allow-oom'})
