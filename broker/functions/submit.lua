-- submit: store new jobs of one model.
-- ARGS: max_depth, idempotency ttl ms, then per job: serial, version, band, deadline ms from now, result ttl ms, owner, media, input,
--       blob, idempotency digest, fingerprint, max_attempts, max_crashes, watch, celery id, foreign message,
--       most open jobs of the owner (0 = no limit), call ('' or explain)
-- REPLY: depth, then per job: created | existing | key_reused | full | quota, serial
-- Not allow-oom: at maxmemory admission stops here, while finish and release still pass.
local SUBMIT_STRIDE = 18
local SUBMIT_MAX = 1000 -- Lua passes at most some 8,000 values to one command; a call cut short there would be half done

local function known(p, digest, fingerprint)
  if digest == '' then return end
  local first = redis.call('GET', p .. 'idem:' .. digest) -- guard:dedup
  if not first then return end
  return string.sub(first, 27) == fingerprint and 'existing' or 'key_reused', string.sub(first, 1, 26)
end

-- The same serial again is a submit repeated after a lost reply: the set of those, found with one call.
local function repeated(p, args)
  local keys, found = {}, {}
  for i = 3, #args, SUBMIT_STRIDE do keys[#keys + 1] = p .. 'job:' .. args[i] end
  if redis.call('EXISTS', unpack(keys)) == 0 then return found end
  for i = 3, #args, SUBMIT_STRIDE do found[args[i]] = redis.call('EXISTS', p .. 'job:' .. args[i]) == 1 end
  return found
end

-- Fields that most jobs leave empty, and where they stand behind the serial. An absent field means empty (or 0): fewer bytes in
-- memory and in the append-only file.
local OPTIONAL = {owner = 5, blob = 8, watch = 13, celery = 14, call = 17}

local function create(p, todo, now, at, args)
  local serial, version, band, deadline = args[at], args[at + 1], args[at + 2], now + args[at + 3]
  local record = {'HSET', p .. 'job:' .. serial, 'state', 'queued', 'version', version, 'band', band, 'created', now,
    'deadline', deadline, 'ttl', args[at + 4], 'media', args[at + 6], 'max_attempts', args[at + 11], 'max_crashes', args[at + 12]}
  for field, offset in pairs(OPTIONAL) do
    if args[at + offset] ~= '' then
      record[#record + 1] = field
      record[#record + 1] = args[at + offset]
    end
  end
  local input, inline = args[at + 7], args[at + 8] == ''
  if inline and #input <= SMALL then
    record[#record + 1] = 'in'
    record[#record + 1] = input
  end
  redis.call(unpack(record))
  if inline and #input > SMALL then redis.call('SET', p .. 'in:' .. serial, input) end
  if args[at + 9] ~= '' then redis.call('SET', p .. 'idem:' .. args[at + 9], serial .. args[at + 10], 'PX', args[2]) end
  later(todo, 'ZADD', p .. 'index', 0, serial)
  later(todo, 'ZADD', p .. 'ready:' .. version, band * WEIGHT + deadline, serial)
  later(todo, 'SADD', p .. 'versions', version)
  later(todo, 'LPUSH', tickets(p, tonumber(band)), TICKET)
  count(todo, 'accepted', 1)
  count_open(todo, args[at + 5], 1)
end

-- `open` holds what this call has added by itself; the rest is in the store.
local function spent(p, todo, owner, most)
  if owner == '' or most == 0 then return false end
  local added = todo.open and todo.open[owner] or 0
  return (redis.call('HGET', p .. 'open', owner) or 0) + added >= most -- guard:quota
end

local function submit(keys, args)
  if #args > 2 + SUBMIT_MAX * SUBMIT_STRIDE then return redis.error_reply('ERR more than ' .. SUBMIT_MAX .. ' jobs in one submit') end
  local p, now, todo = keys[1], now_ms(), {}
  local waiting, before, reply = depth(p), repeated(keys[1], args), {}
  for i = 3, #args, SUBMIT_STRIDE do
    local serial, foreign = args[i], args[i + 15]
    local status, first = known(p, args[i + 9], args[i + 10])
    if not status then
      first = serial
      if before[serial] then status = 'existing'
      elseif waiting >= tonumber(args[1]) then status = 'full'
      elseif spent(p, todo, args[i + 5], tonumber(args[i + 16])) then status = 'quota'
      else
        create(p, todo, now, i, args)
        before[serial], waiting, status = true, waiting + 1, 'created'
      end
    end
    if foreign ~= '' and status ~= 'full' then redis.call('HDEL', p .. 'foreign', foreign) end
    reply[#reply + 1] = status
    reply[#reply + 1] = first
  end
  if todo.tally then
    flush(p, todo)
    wake(p)
  end
  return {waiting, unpack(reply)}
end

register('submit', submit, {})
