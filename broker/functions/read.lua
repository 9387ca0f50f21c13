-- The functions that read: none but `watch` writes anything.

local function output_of(p, serial)
  return redis.call('HGET', p .. 'job:' .. serial, 'out') or redis.call('GET', p .. 'out:' .. serial)
end

local RECORD = {@record.list}

local function describe(p, serial, with_output)
  local record = redis.call('HMGET', p .. 'job:' .. serial, unpack(RECORD))
  if not record[@record.state] then return false end
  local position = -1
  if record[@record.state] == 'queued' then
    local line = line_of(p, record[@record.version], record[@record.owner], record[@record.call])
    position = redis.call('ZRANK', line, serial) or -1
  end
  for i = 1, #RECORD do record[i] = record[i] or '' end
  append(record, {position, with_output and output_of(p, serial) or ''})
  return record
end

-- read: one job's record.
-- ARGS: serial, with output ('1' | '0')
-- REPLY: the fields of RECORD, position (-1 = in no line), output; nil if unknown
local function read(keys, args) return describe(keys[1], args[1], args[2] == '1') end

-- input: the input of one job.
-- ARGS: serial
-- REPLY: media, blob, call, inline input (nil if it is in the blob or no longer kept); nil if unknown
local function input(keys, args)
  local p, serial = keys[1], args[1]
  local found = redis.call('HMGET', p .. 'job:' .. serial, 'media', 'blob', 'call', 'in')
  if not found[1] then return false end
  return {found[1], found[2] or '', found[3] or '', found[4] or redis.call('GET', p .. 'in:' .. serial)}
end

-- ended: which of these jobs have ended or are unknown, so that a caller who waits for many asks once.
-- ARGS: per job: serial
-- REPLY: their serials
local function ended(keys, args)
  local reply = {}
  for _, serial in ipairs(args) do
    local state = redis.call('HGET', keys[1] .. 'job:' .. serial, 'state')
    if state ~= 'queued' and state ~= 'leased' and state ~= 'delayed' then reply[#reply + 1] = serial end
  end
  return reply
end

-- watch: push a job's changes to a channel from now on, while the job is live, and read the record in the same step: no change
-- falls in between. The job of another owner is only read.
-- ARGS: serial, mark and channel ('=': only the end, '+': every change), whose ('=' and the owner, '' = any owner's)
-- REPLY: as read
local function watch(keys, args)
  local key = keys[1] .. 'job:' .. args[1]
  local state, owner, watchers = unpack(redis.call('HMGET', key, 'state', 'owner', 'watch'))
  local is_theirs = args[3] == '' or args[3] == '=' .. (owner or '') -- guard:watched_owner
  if is_theirs and (state == 'queued' or state == 'leased' or state == 'delayed') then
    watchers = watchers or ''
    if not string.find(',' .. watchers .. ',', ',' .. args[2] .. ',', 1, true) then
      redis.call('HSET', key, 'watch', watchers == '' and args[2] or watchers .. ',' .. args[2])
    end
  end
  return describe(keys[1], args[1], true)
end

-- follow: one job's record, and what its stream holds beyond what a reader has seen: all that a reader of its events looks at.
-- ARGS: serial, with output ('1' | '0'), mark of the stream that the reader saw, how many chunks of it, most chunks to return
-- REPLY: record (as in read); mark of the stream (empty: the job has none); how many chunks stand before those that follow, 0 if it
--        is another stream than the reader's, or has lost chunks that the reader saw; the chunks. nil if unknown
local function follow(keys, args)
  local record = describe(keys[1], args[1], args[2] == '1')
  if not record then return false end
  local key = keys[1] .. 'stream:' .. args[1]
  local mark = redis.call('LINDEX', key, 0) or ''
  local seen = mark == args[3] and tonumber(args[4]) or 0
  if seen > 0 and seen >= redis.call('LLEN', key) then seen = 0 end -- guard:seen
  local reply = {record, mark, seen}
  append(reply, redis.call('LRANGE', key, seen + 1, seen + args[5]))
  return reply
end

-- newest: which jobs an index holds, newest first. It reads no record, so that pages of many models can be merged cheaply.
-- ARGS: index (index | inbox | tagged), owner ('' = of all owners), serial to start before ('' = newest), limit, tag (of `tagged`)
-- REPLY: serials
local function newest(keys, args)
  local index, before, tag = keys[1] .. args[1] .. (args[2] == '' and '' or ':' .. args[2]), args[3], args[5]
  if tag == '' then return redis.call('ZREVRANGEBYLEX', index, before == '' and '+' or '(' .. before, '-', 'LIMIT', 0, args[4]) end
  -- The minus sign comes behind the comma, so `tag-` is behind every entry of the tag.
  local from = '(' .. tag .. (before == '' and '-' or ',' .. before)
  local found = redis.call('ZREVRANGEBYLEX', index, from, '[' .. tag .. ',', 'LIMIT', 0, args[4])
  for i, entry in ipairs(found) do found[i] = string.sub(entry, #tag + 2) end
  return found
end

-- records: the records of several jobs.
-- ARGS: per job: serial
-- REPLY: per job: serial, record (as in read, without output; nil if unknown)
local function records(keys, args)
  local reply = {}
  for _, serial in ipairs(args) do
    reply[#reply + 1] = serial
    reply[#reply + 1] = describe(keys[1], serial, false)
  end
  return reply
end

-- stats: one model's queue in numbers.
-- ARGS: none
-- REPLY: now ms; per band: ready, age of the oldest ms; then solo, delayed, leased, inbox, counters (flat), open jobs by owner
--        (flat), those of them that wait for their start (flat), delayed jobs whose time has come
local function stats(keys)
  local p, now = keys[1], now_ms()
  local waiting, age, solo, leased = {}, {}, 0, 0
  for _, band in ipairs(BANDS) do waiting[band], age[band] = 0, 0 end
  local versions = redis.call('SMEMBERS', p .. 'versions')
  for _, version in ipairs(versions) do
    for _, line in ipairs(all_lines_of(p, version)) do
      local from = 0
      for _, band in ipairs(BANDS) do
        local n = redis.call('ZCOUNT', line, band * WEIGHT, '(' .. (band + 1) * WEIGHT)
        if n > 0 then age[band] = math.max(age[band], oldest_age(p, line, from, n, now)) end
        waiting[band], from = waiting[band] + n, from + n
      end
    end
    local suspects = redis.call('ZCARD', p .. 'solo:' .. version)
    if suspects > 0 then age[0] = math.max(age[0], oldest_age(p, p .. 'solo:' .. version, 0, suspects, now)) end
    solo = solo + suspects
  end
  local reply = {now}
  for _, band in ipairs(BANDS) do
    reply[#reply + 1] = waiting[band]
    reply[#reply + 1] = age[band]
  end
  for _, worker in ipairs(redis.call('ZRANGE', p .. 'leases', 0, -1)) do leased = leased + redis.call('HLEN', p .. 'held:' .. worker) end
  reply[#reply + 1] = solo
  reply[#reply + 1] = redis.call('ZCARD', p .. 'delayed')
  reply[#reply + 1] = leased
  reply[#reply + 1] = redis.call('ZCARD', p .. 'inbox')
  reply[#reply + 1] = redis.call('HGETALL', p .. 'counters')
  reply[#reply + 1] = redis.call('HGETALL', p .. 'open')
  reply[#reply + 1] = redis.call('HGETALL', p .. 'planned')
  reply[#reply + 1] = redis.call('ZCOUNT', p .. 'delayed', '-inf', now)
  return reply
end

local DELAYED_LOOKED_AT = 1000

-- The delayed jobs of a version; of any version if there are too many to look at.
local function delayed_of(p, version)
  local found = redis.call('ZCARD', p .. 'delayed')
  if found == 0 or found > DELAYED_LOOKED_AT then return found end
  found = 0
  for _, serial in ipairs(redis.call('ZRANGE', p .. 'delayed', 0, -1)) do
    if redis.call('HGET', p .. 'job:' .. serial, 'version') == version then found = found + 1 end
  end
  return found
end

-- unfinished: the jobs of a version that have not ended, counted at one moment, so that a job that moves in between is not missed.
-- ARGS: version
-- REPLY: waiting (delayed ones included; those of any version if they are many), leased
function unfinished(keys, args)
  local p, version, leased = keys[1], args[1], 0
  local waiting = delayed_of(p, version) + redis.call('ZCARD', p .. 'solo:' .. version)
  for _, line in ipairs(all_lines_of(p, version)) do waiting = waiting + redis.call('ZCARD', line) end
  for _, worker in ipairs(redis.call('ZRANGE', p .. 'leases', 0, -1)) do
    for _, serial in ipairs(redis.call('HKEYS', p .. 'held:' .. worker)) do
      if redis.call('HGET', p .. 'job:' .. serial, 'version') == version then leased = leased + 1 end
    end
  end
  return {waiting, leased}
end

-- demand: what a worker needs to know each second of a model to decide how many slots to have: no more than a few calls per line.
-- ARGS: per version: version
-- REPLY: now ms; accepted jobs; jobs that workers ended; leased; per version: waiting (delayed ones not included),
--        ms until the first deadline of those of the most urgent band (-1 = none waits)
local function demand(keys, args)
  local p, now, leased = keys[1], now_ms(), 0
  local counted = redis.call('HMGET', p .. 'counters', 'accepted', 'ended:succeeded', 'ended:failed', 'ended:dead')
  for i = 1, 4 do counted[i] = tonumber(counted[i] or 0) end
  for _, worker in ipairs(redis.call('ZRANGE', p .. 'leases', 0, -1)) do leased = leased + redis.call('HLEN', p .. 'held:' .. worker) end
  local reply = {now, counted[1], counted[2] + counted[3] + counted[4], leased}
  for _, version in ipairs(args) do
    local waiting, first = redis.call('ZCARD', p .. 'solo:' .. version), math.huge
    for _, line in ipairs(all_lines_of(p, version)) do
      local head = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')[2]
      if head then
        waiting = waiting + redis.call('ZCARD', line)
        first = math.min(first, tonumber(head))
      end
    end
    reply[#reply + 1] = waiting
    reply[#reply + 1] = first < math.huge and math.max(0, first % WEIGHT - now) or -1
  end
  return reply
end

register('read', read, {'no-writes', 'allow-stale'})
register('input', input, {'no-writes', 'allow-stale'})
register('ended', ended, {'no-writes', 'allow-stale'})
register('follow', follow, {'no-writes', 'allow-stale'})
register('newest', newest, {'no-writes', 'allow-stale'})
register('records', records, {'no-writes', 'allow-stale'})
register('stats', stats, {'no-writes', 'allow-stale'})
register('unfinished', unfinished, {'no-writes', 'allow-stale'})
register('demand', demand, {'no-writes', 'allow-stale'})
-- unwaited: watch, because the next look heals its loss
register('watch', watch, {'allow-oom'})
