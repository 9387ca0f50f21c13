-- submit: store new jobs of one model.
-- ARGS: max_depth, least idempotency ttl ms, told ('1': words stand behind each job); per job: serial, version, band,
--       deadline ms from now, result ttl ms, owner, media, input, blob, idempotency digest, fingerprint,
--       terms (most attempts and most crashes), watch, most open jobs of the owner (0 = no limit), call ('' | explain | shard),
--       trace context, serial of the replayed job, delay ms (0 = none; else the job is put aside until then),
--       tags (joined by commas), placing (which number of partitions placed its key; '' = it can be in no other queue); then, mostly
--       left out, the words, one for each extension that takes part in submits, which alone reads it
-- REPLY: depth; per job: created | existing | key_reused | retired (the queue takes no job of the version) | moved (an older number of
--        partitions placed the key) | full | quota, or the status with which an extension refuses it; serial
-- LARGEST: SUBMIT_MAX jobs
-- Without allow-oom: at maxmemory this function is refused and admission stops, while finish and release still pass.
-- A run that began before the deadline may end after it. The key outlives the result, or a repeat would make a second job.
local RUN_PAST_DEADLINE_MS = 3600000
local SUBMIT_MAX = 1000

local function known(p, call, digest, fingerprint)
  if digest == '' then return end
  local first = call.keys[digest] or redis.call('GET', p .. 'idem:' .. digest) -- guard:dedup
  if not first then return end
  return string.sub(first, 27) == fingerprint and 'existing' or 'key_reused', string.sub(first, 1, 26)
end

-- The serials that are stored already, because their submit is repeated after a lost reply; and the versions that are retired.
-- Usually one call shows that there are none.
local function known_before(p, args, stride)
  local keys, stored, retired = {p .. 'retired'}, {}, {}
  for i = @submit.first, #args, stride do keys[#keys + 1] = p .. 'job:' .. args[i] end
  local found = redis.call('EXISTS', unpack(keys))
  if found == 0 then return stored, retired end
  local closed = redis.call('ZRANGE', p .. 'retired', 0, -1)
  for _, version in ipairs(closed) do retired[version] = true end
  if found == 1 and #closed > 0 then return stored, retired end
  for i = @submit.first, #args, stride do stored[args[i]] = redis.call('EXISTS', p .. 'job:' .. args[i]) == 1 end
  return stored, retired
end

-- Whether the key was placed by an older number of partitions than the one in force, by which a repeat may lie elsewhere.
local function is_moved(p, call, placing)
  if placing == '' then return false end
  call.placing = call.placing or tonumber(redis.call('GET', p .. 'placing') or 0)
  return tonumber(placing) < call.placing -- guard:placing
end

-- Fields that most jobs leave empty, and their positions behind the serial. An absent field means empty (or 0), which saves bytes
-- in memory and in the append-only file.
local OPTIONAL = {'owner', @submit.owner, 'blob', @submit.blob, 'call', @submit.call, 'trace', @submit.trace,
  'replay_of', @submit.replay_of, 'tags', @submit.tags}

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

-- The place of a job without a delay: a line, and the owner's turn there.
local function in_line(p, at, args, deadline, call)
  local version, band, owner = args[at + @submit.version], args[at + @submit.band], args[at + @submit.owner]
  local is_shard = args[at + @submit.call] == 'shard'
  local job = {at = at, line = line_of(p, version, owner, args[at + @submit.call]), score = band * WEIGHT + deadline}
  job.ahead = ahead_of(call, job.line, job.score)
  if is_shard then call.shards = true else join(p, call, version, band, owner) end
  call.ready = call.ready or version
  return job
end

-- Decide on one job to store: its place, and the content of its record.
local function draft(p, todo, now, at, args, call)
  local serial, deadline, start = args[at], now + args[at + @submit.deadline], now + args[at + @submit.delay]
  local job = start > now and {at = at, ahead = 0, start = start} or in_line(p, at, args, deadline, call) -- guard:start
  local record = {'state', job.start and 'delayed' or 'queued', 'version', args[at + @submit.version], 'band', args[at + @submit.band],
    'created', now, 'deadline', deadline, 'ttl', args[at + @submit.ttl], 'media', args[at + @submit.media],
    'terms', job.ahead > 0 and args[at + @submit.terms] .. ',' .. job.ahead or args[at + @submit.terms]}
  append(record, job.start and {'not_before', start})
  local watch = args[at + @submit.watch]
  local marks = call.told and hooks.drafted(p, args, at + @submit.words, args[at + @submit.owner], call, record)
  if marks then watch = watch .. marks end
  if watch ~= '' then append(record, {'watch', watch}) end
  local n = #record
  for i = 1, #OPTIONAL, 2 do
    local value = args[at + OPTIONAL[i + 1]]
    if value ~= '' then
      record[n + 1], record[n + 2] = OPTIONAL[i], value
      n = n + 2
    end
  end
  local input, inline = args[at + @submit.input], args[at + @submit.blob] == ''
  if inline and #input <= SMALL then
    record[n + 1], record[n + 2] = 'in', input
  elseif inline then store(todo, p .. 'in:' .. serial, input) end
  if args[at + @submit.key] ~= '' then call.keys[args[at + @submit.key]] = serial .. args[at + @submit.fingerprint] end
  call.opened[args[at + @submit.owner]] = (call.opened[args[at + @submit.owner]] or 0) + 1
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
    count_open(todo, args[at + @submit.owner], 1)
    if job.start then plan_start(p, serial, args[at + @submit.owner], todo) end
    if args[at + @submit.key] ~= '' then
      local kept = math.max(args[@submit.key_ttl], args[at + @submit.deadline] + args[at + @submit.ttl] + RUN_PAST_DEADLINE_MS)
      set_later(todo, p .. 'idem:' .. args[at + @submit.key], serial .. args[at + @submit.fingerprint], kept)
    end
    link(p, todo, args[at + @submit.replay_of], serial)
  end
  for _, job in ipairs(call.drafts) do
    local at, serial = job.at, args[job.at]
    if args[at + @submit.owner] ~= '' then
      later(todo, 'SADD', p .. 'owners', args[at + @submit.owner])
      later(todo, 'ZADD', p .. 'index:' .. args[at + @submit.owner], 0, serial)
    end
    for _, entry in ipairs(tag_entries(args[at + @submit.tags], serial)) do
      for _, list in ipairs(tag_lists(p, args[at + @submit.owner])) do later(todo, 'ZADD', list, 0, entry) end
    end
    if job.start then later(todo, 'ZADD', p .. 'delayed', math.min(job.start, now + args[at + @submit.deadline]), serial)
    else
      later(todo, 'ZADD', job.line, job.score, serial)
      later(todo, 'SADD', p .. 'versions', args[at + @submit.version])
      later(todo, 'LPUSH', tickets(p, tonumber(args[at + @submit.band])), TICKET)
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

-- Whether the queue is at its limit. A job with a delay counts the delayed jobs too, or they would have no limit; the jobs of
-- now are not refused for the sake of later ones.
-- D74: docs/design/store.md
local function is_full(p, call, waiting, most, delay)
  if tonumber(delay) > 0 then waiting = waiting + redis.call('ZCARD', p .. 'delayed') + call.delayed end -- guard:delayed_depth
  return waiting >= most
end

-- The status of one job of the call, and the serial for the caller.
local function decide(p, todo, now, i, args, call)
  local serial, owner = args[i], args[i + @submit.owner]
  local status, first = known(p, call, args[i + @submit.key], args[i + @submit.fingerprint])
  if status then return status, first end
  if call.before[serial] then return 'existing', serial end
  local refused
  if call.retired[''] or call.retired[args[i + @submit.version]] then refused = 'retired' -- guard:retired
  elseif is_moved(p, call, args[i + @submit.placing]) then refused = 'moved'
  elseif is_full(p, call, call.depth, tonumber(args[@submit.max_depth]), args[i + @submit.delay]) then refused = 'full'
  elseif spent(p, call, owner, tonumber(args[i + @submit.most_open])) then refused = 'quota'
  elseif call.told then refused = hooks.asked(p, args, i + @submit.words, owner, call)
  end
  if refused then return refused, serial end
  draft(p, todo, now, i, args, call)
  call.before[serial] = true
  if tonumber(args[i + @submit.delay]) > 0 then call.delayed = call.delayed + 1 else call.depth = call.depth + 1 end
  return 'created', serial
end

-- Tell extensions the status of the jobs for which they have a word, once the jobs are stored.
local function tell_extensions(p, args, reply, todo)
  local at = 0
  for i = @submit.first, #args, @submit.stride_told do
    at = at + 2
    hooks.submitted(p, args, i + @submit.words, args[i], args[i + @submit.owner], reply[at], todo)
  end
  flush(p, todo)
end

local function submit(keys, args, todo)
  local told = args[@submit.told] == '1'
  local stride = told and @submit.stride_told or @submit.stride
  if #args > @submit.first - 1 + SUBMIT_MAX * stride then
    return redis.error_reply('ERR more than ' .. SUBMIT_MAX .. ' jobs in one submit')
  end
  local p, now = keys[1], now_ms()
  local waiting, reply = depth(p), {0}
  -- The decisions on all jobs of the call, before any is stored. `waiting`: the depth before the call, `depth` with its own jobs.
  local before, retired = known_before(p, args, stride)
  local call = {places = {}, joined = {}, keys = {}, opened = {}, drafts = {}, index = {}, before = before, retired = retired,
    waiting = waiting, depth = waiting, delayed = 0, told = told}
  for i = @submit.first, #args, stride do
    reply[#reply + 1], reply[#reply + 2] = decide(p, todo, now, i, args, call)
  end
  create(p, todo, now, args, call)
  if told then tell_extensions(p, args, reply, todo) end
  reply[1] = call.depth
  return reply
end

register('submit', submit, {})
