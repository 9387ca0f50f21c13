-- submit: store new jobs of one model.
-- ARGS: max_depth, idempotency ttl ms, then per job: serial, version, band, deadline ms from now, result ttl ms, owner, media, input,
--       blob, idempotency digest, fingerprint, max_attempts, max_crashes, watch, celery id, foreign message
-- REPLY: depth, then per job: created | existing | key_reused | full, serial
-- Not allow-oom: at maxmemory admission stops here, while finish and release still pass.
local SUBMIT_STRIDE = 16

local function known(p, serial, digest, fingerprint)
  if digest ~= '' then
    local first = redis.call('GET', p .. 'idem:' .. digest) -- guard:dedup
    if first then
      local same = string.sub(first, 27) == fingerprint
      return same and 'existing' or 'key_reused', string.sub(first, 1, 26)
    end
  end
  -- The same serial again is a submit repeated after a lost reply.
  if redis.call('EXISTS', p .. 'job:' .. serial) == 1 then return 'existing', serial end
end

local function submit(keys, args)
  local p, now = keys[1], now_ms()
  local waiting, reply, created = depth(p), {}, 0
  for i = 3, #args, SUBMIT_STRIDE do
    local serial, version, band = args[i], args[i + 1], tonumber(args[i + 2])
    local digest, fingerprint, foreign = args[i + 9], args[i + 10], args[i + 15]
    local status, first = known(p, serial, digest, fingerprint)
    if not status and waiting >= tonumber(args[1]) then status, first = 'full', serial end
    if not status then
      local deadline = now + args[i + 3]
      redis.call('HSET', p .. 'job:' .. serial, 'state', 'queued', 'version', version, 'band', band, 'created', now,
        'deadline', deadline, 'ttl', args[i + 4], 'owner', args[i + 5], 'media', args[i + 6], 'blob', args[i + 8],
        'max_attempts', args[i + 11], 'max_crashes', args[i + 12], 'attempts', 0, 'crashes', 0, 'epoch', 0, 'token', '',
        'watch', args[i + 13], 'celery', args[i + 14])
      if args[i + 8] == '' then redis.call('SET', p .. 'in:' .. serial, args[i + 7]) end
      redis.call('ZADD', p .. 'index', 0, serial)
      if digest ~= '' then redis.call('SET', p .. 'idem:' .. digest, serial .. fingerprint, 'PX', args[2]) end
      enqueue(p, serial, version, band, deadline)
      created, waiting = created + 1, waiting + 1
      status, first = 'created', serial
    end
    if foreign ~= '' and status ~= 'full' then redis.call('HDEL', p .. 'foreign', foreign) end
    reply[#reply + 1] = status
    reply[#reply + 1] = first
  end
  count(p, 'accepted', created)
  if created > 0 then wake(p) end
  return {waiting, unpack(reply)}
end

register('submit', submit, {})
