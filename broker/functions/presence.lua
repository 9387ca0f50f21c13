-- Which workers exist: the registry that gateways read, and the lease holders whose process has ended. What one worker does
-- for all.

local LOOKED = REGISTRY .. 'looked'
local LOOK_EVERY_MS = 1000

local function remove_worker(key, worker)
  if redis.call('HDEL', EDITION, 'of:' .. worker) == 1 then new_edition() end
  return redis.call('HDEL', key, worker)
end

-- Once a second for all: remove workers whose time to live is over, because they were killed; and unreadable entries,
-- since a live worker rewrites its entry within seconds.
local function forget_killed(key, now)
  if not redis.call('SET', LOOKED, '1', 'NX', 'PX', LOOK_EVERY_MS) then return end
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local ends = tonumber(string.match(all[i + 1], '^%[([^,]+),')) or 0
    if ends * 1000 <= now then remove_worker(key, all[i]) end
  end
end

-- The first member that does not fit a process, or a worker of a tree whose processes were no members.
local function misfit(key, now, protocol, oldest)
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local ends, other, since = string.match(all[i + 1], '^(%d+) (%d+) (%d+)$')
    if tonumber(ends or 0) <= now then redis.call('HDEL', key, all[i]) -- guard:gone_member
    elseif tonumber(other) < oldest or protocol < tonumber(since) then return {all[i], other, since} end -- guard:protocol
  end
  all = redis.call('HGETALL', REGISTRY .. 'workers')
  for i = 1, #all, 2 do
    local ends = tonumber(string.match(all[i + 1], '^%[([^,]+),')) or 0
    if ends * 1000 > now and string.sub(all[i + 1], -3) ~= ',1]' then return {'worker ' .. all[i], '0', '0'} end -- guard:no_protocol
  end
end

-- join: make a process a member of those that serve this store, or renew it. A new member must fit all others.
-- KEYS: the hash of members
-- ARGS: process, ttl ms, its protocol version, the oldest one beside which it serves
-- REPLY: nothing; or of a member that does not fit its name, its version and its oldest, 0 for a worker that announces none
-- LARGEST: one member; of a new one a look at each member and each worker
-- Trees of all versions call this: its key, and `ttl version oldest` in it, never change.
-- D144: docs/design/store.md
local function join(keys, args)
  local now = now_ms()
  -- A member that was gone when another became one is no longer known, so one that is known still fits all others.
  local other = redis.call('HEXISTS', keys[1], args[1]) == 0 and misfit(keys[1], now, tonumber(args[3]), tonumber(args[4]))
  if other then return other end
  redis.call('HSET', keys[1], args[1], string.format('%d %d %d', now + args[2], args[3], args[4]))
  return {}
end

register('join', join, {'allow-oom'})

-- announce: enter a worker in the registry until its time to live is over.
-- KEYS: the hash of workers
-- ARGS: worker, ttl ms, the worker as JSON, a digest of what it serves
-- REPLY: the registry's edition: another number once a worker serves something else, came or went, or a model's entry changed
-- LARGEST: one worker; once a second a look at each
-- All moments are by this clock, because a worker's clock may be hours off.
local function announce(keys, args)
  local now = now_ms()
  forget_killed(keys[1], now)
  if redis.call('HGET', EDITION, 'of:' .. args[1]) ~= args[4] then
    redis.call('HSET', EDITION, 'of:' .. args[1], args[4])
    new_edition()
  end
  local ends, seen = string.format('%.3f', (now + args[2]) / 1000), string.format('%.3f', now / 1000)
  redis.call('HSET', keys[1], args[1], '[' .. ends .. ',' .. args[3] .. ',' .. seen .. ',1]') -- 1: the process is a member (see join)
  return tonumber(redis.call('HGET', EDITION, 'number'))
end

register('announce', announce, {'allow-oom'})

-- withdraw_worker: take a worker that ends out of the registry.
-- KEYS: the hash of workers
-- ARGS: worker
-- REPLY: number of workers removed
-- LARGEST: one worker
local function withdraw_worker(keys, args) return remove_worker(keys[1], args[1]) end

register('withdraw_worker', withdraw_worker, {'allow-oom'})

-- place: note where the slot of a worker runs, for the timelines of its jobs.
-- KEYS: the slot's place
-- ARGS: ttl ms, the place as JSON
-- REPLY: ok
-- LARGEST: one place
-- This function, keep_times and identity exist because a plain command is refused at the limit of memory. A worker that starts
-- on a full store must get to work, because only workers free memory.
local function place(keys, args)
  redis.call('SET', keys[1], args[2], 'PX', args[1])
  return 'ok'
end

register('place', place, {'allow-oom'})

-- keep_times: note how long batches of a model took, for workers that start later.
-- KEYS: the hash of the model's learned times
-- ARGS: what the times hold for, the times as JSON
-- REPLY: ok
-- LARGEST: one entry
local function keep_times(keys, args)
  redis.call('HSET', keys[1], args[1], args[2])
  return 'ok'
end

register('keep_times', keep_times, {'allow-oom'})

-- identity: name this store when it is first asked.
-- KEYS: the store's name
-- ARGS: a new random name
-- REPLY: the name that the store has
-- LARGEST: one name
local function identity(keys, args)
  redis.call('SET', keys[1], args[1], 'NX')
  return redis.call('GET', keys[1])
end

register('identity', identity, {'allow-oom'})

-- absent: look, on behalf of all sweepers, for lease holders whose own channel has no subscriber, because their process has ended.
-- ARGS: sweeper, ms in which no other sweeper looks, ms after which a holder that is still missing is gone
-- REPLY: looked ('0': another sweeper did a moment ago), number of holders newly missing; then the names of those that are gone
-- LARGEST: one look at each lease
-- Sweepers share what they saw: a sweeper that died or froze between the two looks at a missing holder is replaced by whichever
-- comes first once its time is over. A holder comes back into view if it subscribes again before the second look.
-- D5: docs/design/leases-and-losses.md
local LOOKS_REMEMBERED = 4 -- a missing holder must be seen missing again soon, or after a pause of the store all would be gone

local function missing_since(p)
  local all, since = redis.call('HGETALL', p .. 'missing'), {}
  for i = 1, #all, 2 do since[all[i]] = tonumber(all[i + 1]) end
  return since
end

local function absent(keys, args)
  local p, now, fresh, gone = keys[1], now_ms(), 0, {}
  local holders = redis.call('ZRANGE', p .. 'leases', 0, -1)
  if #holders == 0 then return {'1', 0} end -- a model at rest costs no write
  local sweeper = redis.call('GET', p .. 'look')
  if sweeper and sweeper ~= args[1] then return {'0', 0} end
  if not sweeper then redis.call('SET', p .. 'look', args[1], 'PX', args[2]) end
  local before, missing = missing_since(p), without_subscriber(p, holders)
  for _, worker in ipairs(missing) do
    local since = before[worker]
    before[worker] = nil
    if not since or since > now then -- the clock may have been set back
      fresh = fresh + 1
      redis.call('HSET', p .. 'missing', worker, now)
    elseif now - since >= tonumber(args[3]) then
      gone[#gone + 1] = worker
    end
  end
  for worker in pairs(before) do redis.call('HDEL', p .. 'missing', worker) end
  if #missing > 0 then redis.call('PEXPIRE', p .. 'missing', LOOKS_REMEMBERED * args[2] + args[3]) end
  local reply = {'1', fresh}
  append(reply, gone)
  return reply
end

register('absent', absent, {'allow-oom'})
