-- claim: take the next batch of one model version for one worker, or say when to ask again.
-- ARGS: version, worker, nonce, limit, enough, max_wait ms, min_slack ms (at `limit` jobs), slack per item ms, hurry ms, lease ms,
--       limit of inline input bytes, shard ('1': take one shard and nothing else), offer ('1': a submit may make this claim later)
-- REPLY: reason ('' = nothing taken), depth (without waiting shards), retry in ms (-1 = wait for a wake-up), now ms, stepped over,
--        expired, number of messages, waiting shards of the version, records that were gone; then the messages of extensions to the
--        worker; then the changes of the expired jobs (see `tell`); per job: serial, token, media, input, blob, band, created, deadline,
--        attempts, crashes, call, trace, owner; `created`: since when the job waits, behind its delay if it had one
-- LARGEST: leases CLAIM_MAX jobs, ends or moves MOVES_MAX more, hands out few messages; looks once at each owner in line
-- D30: docs/design/leases-and-losses.md
local BULK_TURN = 8 -- every 8th claim serves bulk first, so that bulk never starves
local SOLO_AGAIN_MS = 1000 -- an upper bound: a slot asks as soon as its batch has ended in any case
local FEW = 16 -- a slot never holds more shards than this

-- Whether the worker runs something that delays other jobs. A slot that runs only shards runs ordinary jobs between
-- their rows.
local function is_busy(p, worker)
  local held = p .. 'held:' .. worker
  local n = redis.call('HLEN', held)
  if n == 0 or n > FEW then return n > 0 end
  local all = redis.call('HGETALL', held)
  for i = 2, #all, 2 do
    if tonumber(all[i]) > 0 then return true end -- guard:shards_are_idle
  end
  return false
end

local function pool_is_idle(p)
  for _, worker in ipairs(redis.call('ZRANGE', p .. 'leases', 0, -1)) do
    if is_busy(p, worker) then return false end
  end
  return true
end

-- Bulk waits behind a full band of interactive jobs: count such claims, and let bulk go first in every 8th.
local function bulk_is_due(p)
  local bulk = redis.call('LLEN', tickets(p, 9))
  if bulk == shards_among(p, bulk) then return false end
  return redis.call('HINCRBY', p .. 'counters', 'bulk_turn', 1) % BULK_TURN == 0
end

local function in_order(first, second, limit)
  local order = {}
  for _, list in ipairs({first, second}) do
    for _, job in ipairs(list) do
      if #order < limit then order[#order + 1] = job end
    end
  end
  return order
end

-- The next jobs, up to `limit`: interactive, then late, then bulk; bulk first when it is due. `need` is the slack that the batch at
-- hand needs.
local function next_jobs(p, version, limit, need, now, todo, tally)
  local kept = live(p, version, '', '-inf', '(' .. WEIGHT, 0, limit, need, now, todo, tally)
  if #kept < limit then
    return in_order(kept, live(p, version, '', WEIGHT, '+inf', 0, limit, 0, now, todo, tally), limit)
  end
  if not bulk_is_due(p) then return kept end
  return in_order(live(p, version, '', 9 * WEIGHT, '+inf', 0, limit, 0, now, todo, tally), kept, limit)
end

-- As `next_jobs`, where owners take turns.
local function next_in_turn(p, version, limit, need, now, todo, tally)
  local order = in_turn(p, version, 0, limit, need, now, todo, tally)
  if #order < limit then
    local rest = in_turn(p, version, LATE, limit, 0, now, todo, tally)
    if #rest < limit then rest = in_order(rest, in_turn(p, version, 9, limit - #rest, 0, now, todo, tally), limit) end
    order = in_order(order, rest, limit)
  elseif bulk_is_due(p) then
    order = in_order(in_turn(p, version, 9, limit, 0, now, todo, tally), order, limit)
  end
  return order
end

-- The reason to release the batch now; or nil, and the ms until it may leave.
local function release_reason(p, order, limit, enough, waiting, max_wait, hurry, now)
  -- A fresh model takes one job at a time. If nothing waits behind that job, the job met an idle slot and filled no batch.
  if #order >= limit then return limit == 1 and waiting == 1 and 'idle' or 'full' end
  if #order >= enough then return enough <= 1 and 'idle' or 'full' end
  if pool_is_idle(p) then return 'idle' end
  local age = now - (waits_since(p, order[1][1]) or 0) -- 0: the record is gone
  if age >= max_wait then return 'wait' end
  local slack = order[1][2] - now
  if slack <= hurry then return 'deadline' end
  return nil, math.max(1, math.min(max_wait - age, slack - hurry))
end

-- The jobs of `order` that can be leased now: their records, up to the limit of bytes. A job that another claim has leased, or that
-- has ended, leaves its line; so does one whose record is gone.
local function leasable(p, order, limit_bytes, now, todo, tally)
  local jobs, bytes = {}, 0
  for _, entry in ipairs(order) do
    local serial = entry[1]
    local job = redis.call('HMGET', p .. 'job:' .. serial, @leased.list)
    if job[@leased.state] == 'queued' then
      job.input = job[@leased.in] or job[@leased.blob] and '' or redis.call('GET', p .. 'in:' .. serial) or ''
      bytes = bytes + #job.input
      if #jobs > 0 and bytes > limit_bytes then break end
      job.entry = entry
      jobs[#jobs + 1] = job
    else
      redis.call('ZREM', entry[4], serial)
      pop_tickets(p, entry[3], 1)
      if not job[@leased.state] then
        forget_gone(p, serial, todo)
        tallied(tally, 'gone')
      end
    end
  end
  return jobs
end

-- Lease jobs to a worker. The lease comes first, then what the worker holds, then the records, and the places in line go last:
-- wherever a call fails, each job is in line or is taken back with the worker's lease.
local function lease_jobs(p, jobs, args, now, todo, reply)
  local worker, nonce, lease = args[@claim.worker], args[@claim.nonce], args[@claim.lease]
  local held, popped, leased = {}, {}, {}
  todo.leased = leased
  for _, job in ipairs(jobs) do
    held[#held + 1] = job.entry[1]
    held[#held + 1] = job[@leased.call] == 'shard' and -now or now
  end
  redis.call('ZADD', p .. 'leases', now + lease, worker)
  send('HSET', p .. 'held:' .. worker, held)
  for _, job in ipairs(jobs) do
    local serial, deadline, band, line = unpack(job.entry)
    local epoch, attempts = (job[@leased.epoch] or 0) + 1, (job[@leased.attempts] or 0) + 1
    local token = epoch .. ':' .. worker .. ':' .. nonce
    leased[#leased + 1] = {serial, token}
    redis.call('HSET', p .. 'job:' .. serial, 'state', 'leased', 'token', token, 'epoch', epoch, 'attempts', attempts, 'started', now,
      'worker', worker)
    later(todo, 'ZREM', line, serial) -- guard:pop
    push_change(todo, p, job[@leased.watch], false, serial, 'leased', '', '', '', '', '', '')
    popped[band] = (popped[band] or 0) + 1
    local n = #reply
    reply[n + @claimed.serial], reply[n + @claimed.token] = serial, token
    reply[n + @claimed.media], reply[n + @claimed.input], reply[n + @claimed.blob] = job[@leased.media], job.input, job[@leased.blob] or ''
    reply[n + @claimed.band], reply[n + @claimed.created] = job[@leased.band], job[@leased.not_before] or job[@leased.created]
    reply[n + @claimed.deadline], reply[n + @claimed.attempts] = deadline, attempts
    reply[n + @claimed.crashes], reply[n + @claimed.call] = job[@leased.crashes] or 0, job[@leased.call] or ''
    reply[n + @claimed.trace], reply[n + @claimed.owner] = job[@leased.trace] or '', job[@leased.owner] or ''
  end
  for band, n in pairs(popped) do pop_tickets(p, band, n) end
end

-- The first job of a line whose deadline has not passed, and its score; or nil. The jobs before it end here.
local function first_alive(p, line, band, now, todo, tally)
  while tally.left > 0 do
    local first = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
    local serial = first[1]
    if not serial then return end
    local deadline, state = unpack(redis.call('HMGET', p .. 'job:' .. serial, 'deadline', 'state'))
    if state == 'queued' and tonumber(deadline) > now then
      return {serial, tonumber(deadline), band, line}, tonumber(first[2])
    end
    end_late(p, serial, line, band, now, todo, tally)
  end
end

-- Whether a suspect goes before the ordinary jobs. A suspect that crashed a child goes at once, because the crash was most likely
-- its own fault. A suspect that lost workers goes once a batch of ordinary jobs was served since it became one: each suspect makes
-- progress, and none holds up the others twice.
local function solo_due(p, version, place, shared)
  if standing(p, version, 1, shared) == 0 then return true end
  return place - WEIGHT < tonumber(redis.call('HGET', p .. 'counters', 'solo_others:' .. version) or 0) -- guard:solo_turn
end

-- Advance the clock of suspects that lost workers: it counts the claims served while such suspects waited. `others`: ordinary jobs
-- were served, and the clock's reading at that moment is kept.
local function tick(p, version, others)
  local clock = redis.call('HINCRBY', p .. 'counters', 'solo_clock:' .. version, 1)
  if others then redis.call('HSET', p .. 'counters', 'solo_others:' .. version, clock) end
end

-- Ask for a wake-up at this queue length. An unchanged length is not written, which saves an fsync.
local function ask_to_be_woken(p, length)
  local want = tostring(length)
  if redis.call('GET', p .. 'want') ~= want then redis.call('SET', p .. 'want', want) end
end

-- The head of every reply; `claim` fills in the rest at its end.
local function head(reason, retry, now, tally, messages, shards)
  local reply = {@claim_head.blank}
  reply[@claim_head.reason], reply[@claim_head.depth], reply[@claim_head.retry], reply[@claim_head.now] = reason, 0, retry, now
  reply[@claim_head.stepped], reply[@claim_head.expired] = tally.stepped, tally.expired
  reply[@claim_head.messages], reply[@claim_head.shards], reply[@claim_head.gone] = messages, shards, tally.gone
  return reply
end

-- The claim that the next submit may make for this slot (see hand_over.lua): its arguments, with the nonce first. A slot
-- that asks again has a new nonce; if nothing else is new the offer stays as it is, which saves an fsync.
local function keep_offer(p, args)
  if args[@claim.offer] ~= '1' then return drop_offer(p, args) end -- guard:offer
  local key = offers_of(p, args[@claim.version])
  local rest = table.concat({'', args[@claim.version], args[@claim.worker], unpack(args, @claim.nonce + 1, @claim.offer - 1)}, '\n') .. '\n'
  local kept = redis.call('HGET', key, args[@claim.worker])
  if kept and string.sub(kept, -#rest) == rest then return end
  -- By its version, `reconcile` finds the offer if the slot is killed.
  if redis.call('HSET', key, args[@claim.worker], args[@claim.nonce] .. rest) == 1 then
    redis.call('SADD', p .. 'versions', args[@claim.version]) -- guard:offering
  end
end

-- The slot waits: to be woken at this length of the queue, or for a submit that makes its next claim. No submit comes to a retired
-- version, and what a slot leaves there would stay for ever.
local function wait_here(p, args, length, may_offer)
  if is_retired(p, args[@claim.version]) then return drop_offer(p, args) end -- guard:no_offer
  ask_to_be_woken(p, length)
  if may_offer then keep_offer(p, args) else drop_offer(p, args) end
end

-- Take one shard or none. Every shard that is queued wakes all slots, so no wake-up is asked for here.
local function claim_shard(p, args, waiting, now, todo, tally)
  local line = shards_of(p, args[@claim.version])
  local shard = first_alive(p, line, SHARD_BAND, now, todo, tally)
  local jobs = leasable(p, {shard}, tonumber(args[@claim.limit_bytes]), now, todo, tally)
  local reply = head(#jobs > 0 and 'bulk' or '', tally.left > 0 and -1 or 0, now, tally, 0, 0)
  append(reply, todo.changes)
  if #jobs > 0 then lease_jobs(p, jobs, args, now, todo, reply) end
  flush(p, todo)
  reply[@claim_head.depth], reply[@claim_head.shards] = waiting, redis.call('ZCARD', line)
  return reply
end

function claim(keys, args, todo)
  local p, now, tally = keys[1], now_ms(), new_tally()
  -- The usual answer to a slot that has just settled a lone job in the same call. It must be quick, because that job's push waits.
  local waiting, parked = ordinary_depth(p)
  if args[@claim.shard] == '1' then return claim_shard(p, args, waiting, now, todo, tally) end
  local shards = parked > 0 and redis.call('ZCARD', shards_of(p, args[@claim.version])) or 0
  if waiting == 0 then
    local messages = hooks.claimed(p, now, false)
    local reply = head('', -1, now, tally, #messages, shards)
    append(reply, messages)
    wait_here(p, args, 1, true)
    return reply
  end
  local version, worker, limit, enough = args[@claim.version], args[@claim.worker], math.min(CLAIM_MAX, tonumber(args[@claim.limit])), tonumber(args[@claim.enough])
  local order, reason, retry = {}, '', -1
  local suspect, place, shared = nil, nil, false
  -- Usually all waiting jobs are in one line: then there are neither suspects nor owners to look for.
  if redis.call('ZCARD', line_of(p, version)) < waiting then
    suspect, place = first_alive(p, p .. 'solo:' .. version, 0, now, todo, tally)
    shared = owners_wait(p, version)
  end
  local due = suspect and solo_due(p, version, place, shared)
  -- Behind a running batch, a suspect would wait and be charged with a loss that another job caused.
  local free = suspect and (place < WEIGHT or not is_busy(p, worker)) -- guard:solo_free
  if due and not free then
    retry = SOLO_AGAIN_MS
  elseif not due then
    -- The slack that the possible batch needs, not a full batch: a smaller batch runs for a shorter time.
    local need = args[@claim.min_slack] - math.max(0, limit - standing(p, version, limit, shared)) * args[@claim.slack_per_item]
    order = (shared and next_in_turn or next_jobs)(p, version, limit, need, now, todo, tally)
    if #order > 0 then
      local wait
      reason, wait = release_reason(p, order, limit, enough, waiting - tally.expired - tally.gone, tonumber(args[@claim.max_wait]),
        tonumber(args[@claim.hurry]), now)
      if not reason then order, reason, retry = {}, '', wait end
    elseif tally.left < MOVES_MAX and standing(p, version, 1, shared) > 0 then
      retry = 0 -- many late jobs in a row: there may be more behind them
    end
  end
  if free and #order == 0 then
    order, reason, retry = {suspect}, 'solo', -1
  end
  local jobs = leasable(p, order, tonumber(args[@claim.limit_bytes]), now, todo, tally)
  if #order > 0 and #jobs == 0 then reason, retry = '', 0 end
  if suspect and place >= WEIGHT and #jobs > 0 then tick(p, version, reason ~= 'solo') end
  local messages = hooks.claimed(p, now, #jobs == 0 and retry < 0)
  local reply = head(reason, retry, now, tally, #messages, shards)
  append(reply, messages)
  append(reply, todo.changes)
  if #jobs > 0 then
    lease_jobs(p, jobs, args, now, todo, reply)
    if shared and reason ~= 'solo' then pass_turns(p, version, jobs) end
    drop_offer(p, args) -- guard:once
  else
    wait_here(p, args, retry >= 0 and enough or 1, retry < 0)
  end
  flush(p, todo)
  reply[@claim_head.depth] = depth(p) - parked
  return reply
end

register('claim', claim, {'allow-oom'})
