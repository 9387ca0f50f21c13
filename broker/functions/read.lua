-- read, input, watch, list, inbox, stats, unfinished: what others may know. All but watch write nothing.

local function output_of(p, serial)
  return redis.call('HGET', p .. 'job:' .. serial, 'out') or redis.call('GET', p .. 'out:' .. serial)
end

local function describe(p, serial, with_output)
  local record = redis.call('HMGET', p .. 'job:' .. serial, unpack(RECORD))
  if not record[1] then return false end
  local position = -1
  if record[1] == 'queued' then position = redis.call('ZRANK', line_of(p, record[2], record[7], record[#RECORD]), serial) or -1 end
  for i = 1, #RECORD do record[i] = record[i] or '' end
  record[#RECORD + 1] = position
  record[#RECORD + 2] = with_output and output_of(p, serial) or ''
  return record
end

-- read: ARGS serial, with output '1' | '0'. REPLY: the fields of RECORD, position, output; nil when unknown
local function read(keys, args) return describe(keys[1], args[1], args[2] == '1') end

-- input: ARGS serial. REPLY: media, blob, call, the inline input (nil where it is in the blob, or no longer kept); nil when unknown
local function input(keys, args)
  local p, serial = keys[1], args[1]
  local found = redis.call('HMGET', p .. 'job:' .. serial, 'media', 'blob', 'call', 'in')
  if not found[1] then return false end
  return {found[1], found[2] or '', found[3] or '', found[4] or redis.call('GET', p .. 'in:' .. serial)}
end

-- watch: ARGS serial, mark and channel. REPLY: as read. Registers only while the job is live, so the caller misses no change.
local function watch(keys, args)
  local key = keys[1] .. 'job:' .. args[1]
  local state = redis.call('HGET', key, 'state')
  if state == 'queued' or state == 'leased' or state == 'delayed' then
    local watchers = redis.call('HGET', key, 'watch') or ''
    if not string.find(',' .. watchers .. ',', ',' .. args[2] .. ',', 1, true) then
      redis.call('HSET', key, 'watch', watchers == '' and args[2] or watchers .. ',' .. args[2])
    end
  end
  return describe(keys[1], args[1], true)
end

local function page(p, index, args)
  local from = args[1] == '' and '+' or '(' .. args[1]
  local reply = {}
  for _, serial in ipairs(redis.call('ZREVRANGEBYLEX', p .. index, from, '-', 'LIMIT', 0, args[2])) do
    reply[#reply + 1] = serial
    reply[#reply + 1] = describe(p, serial, false)
  end
  return reply
end

-- list: ARGS serial to start before ('' = newest), limit. REPLY: per job serial, record as in read
local function list(keys, args) return page(keys[1], 'index', args) end

-- inbox: as list, of the jobs that failed, were given up or expired and have not been replayed
local function inbox(keys, args) return page(keys[1], 'inbox', args) end

local LOOKS, LOOK = 16, 16 -- a deep queue is looked at in so many places, so many jobs each

-- The age of the oldest of `n` waiting jobs from rank `from` on. Their order is by deadline, so the oldest may stand anywhere;
-- serials ascend with time, so it is known by its name. A queue too deep to be read whole is looked at in places, its head first:
-- exact where all have equal deadlines, else the oldest of a sample.
local function oldest_age(p, ready, from, n, now)
  local step = math.max(LOOK, n / LOOKS)
  local first, at = nil, 0
  while at < n do
    local rank = from + math.floor(at)
    for _, serial in ipairs(redis.call('ZRANGE', ready, rank, math.min(rank + LOOK, from + n) - 1)) do
      if not first or serial < first then first = serial end
    end
    at = at + step
  end
  return first and now - redis.call('HGET', p .. 'job:' .. first, 'created') or 0
end

-- stats: REPLY now, per band: ready, age of its oldest ms; then solo, delayed, leased, inbox, counters (flat), open jobs by owner (flat)
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
  return reply
end

-- unfinished: ARGS version. REPLY: waiting in any line, or of any version for a retry; leased. Of one moment, so that no job
-- that changes sides is missed.
local function unfinished(keys, args)
  local p, version, leased = keys[1], args[1], 0
  local waiting = redis.call('ZCARD', p .. 'delayed') + redis.call('ZCARD', p .. 'solo:' .. version)
  for _, line in ipairs(all_lines_of(p, version)) do waiting = waiting + redis.call('ZCARD', line) end
  for _, worker in ipairs(redis.call('ZRANGE', p .. 'leases', 0, -1)) do
    for _, serial in ipairs(redis.call('HKEYS', p .. 'held:' .. worker)) do
      if redis.call('HGET', p .. 'job:' .. serial, 'version') == version then leased = leased + 1 end
    end
  end
  return {waiting, leased}
end

register('read', read, {'no-writes', 'allow-stale'})
register('input', input, {'no-writes', 'allow-stale'})
register('list', list, {'no-writes', 'allow-stale'})
register('inbox', inbox, {'no-writes', 'allow-stale'})
register('stats', stats, {'no-writes', 'allow-stale'})
register('unfinished', unfinished, {'no-writes', 'allow-stale'})
register('watch', watch, {'allow-oom'})
