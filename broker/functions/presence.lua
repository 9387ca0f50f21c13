-- Which workers there are: the registry that gateways read, and the lease holders whose process has ended.

-- announce: enter a worker in the registry until its time to live is over.
-- KEYS: the hash of workers
-- ARGS: worker, ttl ms, the worker as JSON
-- REPLY: ok
-- All moments are of this clock, because a worker's clock may be hours off.
local function announce(keys, args)
  local now = now_ms()
  local ends, seen = string.format('%.3f', (now + args[2]) / 1000), string.format('%.3f', now / 1000)
  redis.call('HSET', keys[1], args[1], '[' .. ends .. ',' .. args[3] .. ',' .. seen .. ']')
  return 'ok'
end

register('announce', announce, {'allow-oom'})

-- forget_workers: remove workers from the registry whose time to live is over, because they were killed.
-- KEYS: the hash of workers
-- ARGS: none
-- REPLY: number of workers removed
local function forget_workers(keys)
  local now, removed, all = now_ms(), 0, redis.call('HGETALL', keys[1])
  for i = 1, #all, 2 do
    if string.match(all[i + 1], '^%[([^,]+),') * 1000 <= now then removed = removed + redis.call('HDEL', keys[1], all[i]) end
  end
  return removed
end

register('forget_workers', forget_workers, {'allow-oom'})
