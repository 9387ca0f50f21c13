-- read, watch, list, stats: what others may know. All but watch write nothing.

local function output_of(p, serial)
  return redis.call('HGET', p .. 'job:' .. serial, 'out') or redis.call('GET', p .. 'out:' .. serial)
end

local function describe(p, serial, with_output)
  local record = redis.call('HMGET', p .. 'job:' .. serial, unpack(RECORD))
  if not record[1] then return false end
  local position = -1
  if record[1] == 'queued' then position = redis.call('ZRANK', p .. 'ready:' .. record[2], serial) or -1 end
  for i = 1, #RECORD do record[i] = record[i] or '' end
  record[#RECORD + 1] = position
  record[#RECORD + 2] = with_output and output_of(p, serial) or ''
  return record
end

-- read: ARGS serial, with output '1' | '0'. REPLY: the fields of RECORD, position, output; nil when unknown
local function read(keys, args) return describe(keys[1], args[1], args[2] == '1') end

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

-- list: ARGS serial to start before ('' = newest), limit. REPLY: per job serial, record as in read
local function list(keys, args)
  local p = keys[1]
  local from = args[1] == '' and '+' or '(' .. args[1]
  local reply = {}
  for _, serial in ipairs(redis.call('ZREVRANGEBYLEX', p .. 'index', from, '-', 'LIMIT', 0, args[2])) do
    reply[#reply + 1] = serial
    reply[#reply + 1] = describe(p, serial, false)
  end
  return reply
end

local function head_age(p, ready, band, now)
  local first = redis.call('ZRANGEBYSCORE', ready, band * WEIGHT, '(' .. (band + 1) * WEIGHT, 'LIMIT', 0, 1)[1]
  if not first then return 0 end
  return now - redis.call('HGET', p .. 'job:' .. first, 'created')
end

-- stats: REPLY now, per band: ready, age of its head ms; then solo, delayed, leased, counters (flat)
local function stats(keys)
  local p, now = keys[1], now_ms()
  local reply, solo, leased = {now}, 0, 0
  local versions = redis.call('SMEMBERS', p .. 'versions')
  for _, band in ipairs(BANDS) do
    local n, age = 0, 0
    for _, version in ipairs(versions) do
      local ready = p .. 'ready:' .. version
      n = n + redis.call('ZCOUNT', ready, band * WEIGHT, '(' .. (band + 1) * WEIGHT)
      age = math.max(age, head_age(p, ready, band, now))
    end
    reply[#reply + 1] = n
    reply[#reply + 1] = age
  end
  for _, version in ipairs(versions) do solo = solo + redis.call('ZCARD', p .. 'solo:' .. version) end
  for _, worker in ipairs(redis.call('ZRANGE', p .. 'leases', 0, -1)) do leased = leased + redis.call('HLEN', p .. 'held:' .. worker) end
  reply[#reply + 1] = solo
  reply[#reply + 1] = redis.call('ZCARD', p .. 'delayed')
  reply[#reply + 1] = leased
  reply[#reply + 1] = redis.call('HGETALL', p .. 'counters')
  return reply
end

register('read', read, {'no-writes', 'allow-stale'})
register('list', list, {'no-writes', 'allow-stale'})
register('stats', stats, {'no-writes', 'allow-stale'})
register('watch', watch, {'allow-oom'})
