-- submit: store new jobs of one model.
-- ARGS: max_depth, least idempotency ttl ms; per job: serial, version, band, deadline ms from now, result ttl ms, owner, media, input,
--       blob, idempotency digest, fingerprint, terms (most attempts and most crashes), watch, celery id, foreign message,
--       most open jobs of the owner (0 = no limit), call ('' | explain | shard), trace context, serial of the replayed job
-- REPLY: depth; per job: created | existing | key_reused | full | quota, serial
-- Without allow-oom: at maxmemory this function is refused and admission stops, while finish and release still pass.
local SUBMIT_STRIDE = 19
-- A run that began before the deadline may end behind it. The key outlives the result, or a repeat would make a second job.
local RUN_PAST_DEADLINE_MS = 3600000
local SUBMIT_MAX = 1000

local function known(p, digest, fingerprint)
  if digest == '' then return end
  local first = redis.call('GET', p .. 'idem:' .. digest) -- guard:dedup
  if not first then return end
  return string.sub(first, 27) == fingerprint and 'existing' or 'key_reused', string.sub(first, 1, 26)
end

-- The serials that are stored already: their submit is repeated after a lost reply. Mostly one call finds that there is none.
local function repeated(p, args)
  local keys, found = {}, {}
  for i = 3, #args, SUBMIT_STRIDE do keys[#keys + 1] = p .. 'job:' .. args[i] end
  if redis.call('EXISTS', unpack(keys)) == 0 then return found end
  for i = 3, #args, SUBMIT_STRIDE do found[args[i]] = redis.call('EXISTS', p .. 'job:' .. args[i]) == 1 end
  return found
end

-- Fields that most jobs leave empty, and their positions behind the serial. An absent field means empty (or 0), which saves bytes
-- in memory and in the append-only file.
local OPTIONAL = {'owner', 5, 'blob', 8, 'watch', 12, 'celery', 13, 'call', 16, 'trace', 17, 'replay_of', 18}

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
  if redis.call('EXISTS', p .. 'job:' .. old) == 1 then redis.call('HSET', p .. 'job:' .. old, 'replayed_as', serial) end
  later(todo, 'ZREM', p .. 'inbox', old)
end

local function join(p, call, version, band, owner)
  if owner == '' then return end
  local turn = turns_of(p, version, band) .. ':' .. owner
  if call.joined[turn] then return end
  call.joined[turn] = true
  take_turn(p, version, band, owner)
end

local function create(p, todo, now, at, args, call)
  local shard = args[at + 16] == 'shard'
  local serial, version, band, deadline = args[at], args[at + 1], args[at + 2], now + args[at + 3]
  local score = band * WEIGHT + deadline
  local line = line_of(p, version, args[at + 5], args[at + 16])
  local ahead = ahead_of(call, line, score)
  local record = {'HSET', p .. 'job:' .. serial, 'state', 'queued', 'version', version, 'band', band, 'created', now,
    'deadline', deadline, 'ttl', args[at + 4], 'media', args[at + 6],
    'terms', ahead > 0 and args[at + 11] .. ',' .. ahead or args[at + 11]}
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
  end
  redis.call(unpack(record))
  if inline and #input > SMALL then store(todo, p .. 'in:' .. serial, input) end
  if args[at + 9] ~= '' then
    local kept = math.max(args[2], args[at + 3] + args[at + 4] + RUN_PAST_DEADLINE_MS)
    redis.call('SET', p .. 'idem:' .. args[at + 9], serial .. args[at + 10], 'PX', kept)
  end
  link(p, todo, args[at + 18], serial)
  later(todo, 'ZADD', p .. 'index', 0, serial)
  later(todo, 'ZADD', line, score, serial)
  if shard then call.shards = true else join(p, call, version, band, args[at + 5]) end
  later(todo, 'SADD', p .. 'versions', version)
  later(todo, 'LPUSH', tickets(p, tonumber(band)), TICKET)
  count(todo, 'accepted', 1)
  count_open(todo, args[at + 5], 1)
end

-- Whether the owner has as many open jobs as allowed. `todo.open` holds those that this call has added; the others are in the store.
local function spent(p, todo, owner, most)
  if owner == '' or most == 0 then return false end
  local added = todo.open and todo.open[owner] or 0
  return (redis.call('HGET', p .. 'open', owner) or 0) + added >= most -- guard:quota
end

local function submit(keys, args)
  if #args > 2 + SUBMIT_MAX * SUBMIT_STRIDE then return redis.error_reply('ERR more than ' .. SUBMIT_MAX .. ' jobs in one submit') end
  local p, now, todo = keys[1], now_ms(), {}
  local waiting, before, reply = depth(p), repeated(keys[1], args), {0}
  local call = {places = {}, joined = {}, waiting = waiting}
  for i = 3, #args, SUBMIT_STRIDE do
    local serial, foreign = args[i], args[i + 14]
    local status, first = known(p, args[i + 9], args[i + 10])
    if not status then
      first = serial
      if before[serial] then status = 'existing'
      elseif waiting >= tonumber(args[1]) then status = 'full'
      elseif spent(p, todo, args[i + 5], tonumber(args[i + 15])) then status = 'quota'
      else
        create(p, todo, now, i, args, call)
        before[serial], waiting, status = true, waiting + 1, 'created'
      end
    end
    if foreign ~= '' and status ~= 'full' then redis.call('HDEL', p .. 'foreign', foreign) end
    reply[#reply + 1] = status
    reply[#reply + 1] = first
  end
  if todo.tally then
    flush(p, todo)
    wake(p, call.shards) -- guard:shard_wake
  end
  reply[1] = waiting
  return reply
end

register('submit', submit, {})
