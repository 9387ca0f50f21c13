-- Which jobs a queue takes. Its submitters decide by the registry, which they read earlier, and may have stood still since: so what
-- the registry is about to forget is closed here before, in the call that finds it empty.
-- D142: docs/design/store.md
local RETIRED_MS = TOMB_MAX_MS
-- What is left of a queue without records, besides what has a time to live and what extensions keep.
local OF_QUEUE = {'counters', 'learned', 'placing', 'reconcile_from', 'healing', 'strays', 'lost', 'losing', 'swapped', 'want', 'open',
  'planned', 'leases'}

-- What is left of a version without jobs. The slots that it had have gone, some of them by kill -9.
local function drop_version(p, version)
  local names = {offers_of(p, version)}
  for _, band in ipairs(BANDS) do names[#names + 1] = turns_of(p, version, band) end
  redis.call('DEL', unpack(names))
  redis.call('HDEL', p .. 'solo_due', version)
  redis.call('HDEL', p .. 'counters', 'solo_clock:' .. version, 'solo_others:' .. version)
  redis.call('SREM', p .. 'versions', version)
  local kinds, own = {}, version .. ' | '
  for _, kind in ipairs(redis.call('HKEYS', p .. 'learned')) do
    if string.sub(kind, 1, #own) == own then kinds[#kinds + 1] = kind end
  end
  send('HDEL', p .. 'learned', kinds)
end

local function drop_queue(p)
  for _, version in ipairs(redis.call('SMEMBERS', p .. 'versions')) do drop_version(p, version) end
  for _, worker in ipairs(redis.call('ZRANGE', p .. 'leases', 0, -1)) do redis.call('DEL', p .. 'held:' .. worker) end
  for _, name in ipairs(OF_QUEUE) do redis.call('DEL', p .. name) end
end

-- retire: have the queue take no more jobs of a version, if all of them have ended; drop what it kept for the version.
-- ARGS: version ('' = of any version, if no record is kept)
-- REPLY: as unfinished ('': records, 0); only if both are 0 is the queue closed, for RETIRED_MS or until `reopen`
-- LARGEST: as unfinished; then a few keys, and once each version and lease
local function retire(keys, args)
  local p, version, now = keys[1], args[1], now_ms()
  local left = version == '' and {redis.call('ZCARD', p .. 'index'), 0} or unfinished(keys, args)
  if left[1] + left[2] > 0 then return left end -- guard:retire_empty
  send('ZREM', p .. 'retired', redis.call('ZRANGEBYSCORE', p .. 'retired', '-inf', now - RETIRED_MS))
  redis.call('ZADD', p .. 'retired', now, version)
  redis.call('PEXPIRE', p .. 'retired', RETIRED_MS)
  if version == '' then drop_queue(p) else drop_version(p, version) end
  return left
end

-- reopen: have the queue take jobs of a version again, unless it was closed anew since the caller looked.
-- ARGS: version ('' = as in retire), moment of the closing (as the caller read it, before the registry)
-- REPLY: 1, or 0 if it is not closed, or was closed at another moment
-- LARGEST: one entry
local function reopen(keys, args)
  if tonumber(redis.call('ZSCORE', keys[1] .. 'retired', args[1]) or -1) ~= tonumber(args[2]) then return 0 end -- guard:reopen
  return redis.call('ZREM', keys[1] .. 'retired', args[1])
end

-- advance: refuse jobs with an idempotency key that was placed by an older number of partitions. Only when all queues of the model
-- have done so may the registry name the new number.
-- ARGS: placing
-- REPLY: ok
-- LARGEST: one number
local function advance(keys, args)
  local key = keys[1] .. 'placing'
  if tonumber(args[1]) > tonumber(redis.call('GET', key) or 0) then redis.call('SET', key, args[1]) end -- guard:advance
  return 'ok'
end

register('retire', retire, {'allow-oom'})
register('reopen', reopen, {'allow-oom'})
register('advance', advance, {'allow-oom'})
