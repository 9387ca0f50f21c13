-- Shared by every function of the library. The loader puts `#!lua name=...` and SUFFIX in front, the transitions behind. Numbers
-- take the place of names such as `@submit.owner` (broker/store/positions.py).
--
-- KEYS[1] of every function is `ps:{queue}:` unless its header says otherwise; the queue is the model, or `model:p` for its further
-- partitions. All other keys are built from it and carry the same hash tag, so a function stays in
-- one Redis Cluster slot. The keys of extensions are described in their own files.
--
--   job:<serial>      hash    the record; the truth. Its field `terms` holds three numbers, because one field is cheaper: most
--                             attempts, most crashes, and how many jobs stood before it, if any
--   in:<serial>       string  inline input            out:<serial>   string  inline output; up to 64 bytes they are fields
--                             `in` and `out` of the record, because a key of its own would take more memory than the value
--   stream:<serial>   list    its mark, then the chunks that the job has yielded so far (see report)
--   ready:<version>   zset    serial -> band * 2^42 + deadline in ms: the order of the queue; jobs with an owner stand in a
--                             line of their own, ready:<version>:<owner>
--   shards:<version>  zset    as ready, for jobs that each hold many rows (call 'shard'): claimed one by one, never with others
--   turns:<version>:<band>    zset  owner -> number: the order of owners in this band, kept only while jobs with an owner wait
--   solo:<version>    zset    suspects, each to be run alone. Those that crashed a child: serial -> created. Behind them those that
--                             lost workers: serial -> 2^42 + `solo_clock` (counters: claims served while such suspects waited)
--   reconciled        string  there while the last page was reconciled a moment ago; reconcile_from: where the next one begins
--   healing           string  there while the next page is due soon (see reconcile)
--   solo_due          hash    version -> the first deadline in its line of suspects, or an earlier moment
--   delayed           zset    serial -> due, at the latest its deadline: a retry, or a job that was submitted with a delay, whose
--                             record has the moment as `not_before`
--   final             zset    serial -> when to collect it
--   leases            zset    worker -> lease end     held:<worker>  hash    serial -> leased at, below 0 for a shard
--   look              string  the sweeper that looks for missing lease holders just now
--   missing           hash    lease holder without a subscription -> since when it was seen so
--   index             zset    every serial, score 0
--   inbox             zset    serials that ended failed, dead or expired and were not replayed or dismissed, score 0
--   index:<owner>, inbox:<owner>      the same of one owner, so that a caller's own jobs are found without reading those of others
--   tagged            zset    `tag,serial` of every job with tags, score 0; tagged:<owner> those of one owner
--   strays            hash    there while the lists above may have entries of records that are gone (see lists.lua)
--   lost, losing      set     serials of jobs that had not ended when their record was found gone, since and before the last reading
--                             of these lists began; the other way round while there is `swapped` (string)
--   versions          set     versions ever queued    counters       hash    accepted, ended:<state>, redelivered:<why>, ...
--   idem:<digest>     string  serial + fingerprint    tomb:<serial>  string  owner of a job that existed and was collected
--   open              hash    owner -> their jobs that have not ended; no owner without such jobs, and no empty owner
--   planned           hash    owner -> their jobs that wait for a start; starts  hash  serial -> owner of each such job
--   owners            set     owners with a list of their own, until their last record is collected
--   learned           hash    version, device, runtime and threads -> how long batches take there
--   want              string  queue length at which an idle worker asked to be woken
--   offers:<version>  hash    idle worker -> the claim that the next submit may make for it (see hand_over)
--   retired           zset    version -> since when the queue takes no jobs of it; '' = of any (see retire)
--   placing           string  the least number that a job with an idempotency key may have been placed by (see retire)
-- The ticket lists `penstock.{queue}`, ...\x06\x166 and ...\x06\x169 hold one ticket per waiting job of band 0 (with solo), 6 and 9.

local WEIGHT = 4398046511104 -- 2^42: above any Unix time in ms until the year 2109
local BANDS = {0, 6, 9}
local CLAIM_MAX = 1024 -- the largest batch, as in core/model_spec.py: what one call may lease, and settle
local LATE = 6
-- A lost worker is rarely the job's fault and costs the job no attempt; but a job that loses worker after worker runs alone, and at
-- last never again. Losses in a row count, with no other worker of the model lost in between: a storm of losses hits all jobs in turn.
local SUSPECT_LOSSES = 2
local MAX_LOST_IN_A_ROW = 10
local MAX_LOSSES = 25 -- in a row or not: two jobs that both lose workers would otherwise excuse each other for ever
local SHARD_BAND = 9
local TICKET = 't'
-- A record keeps this many of a job's first and last attempts; of those between it keeps the sums.
local PAST_FIRST, PAST_LAST = 3, 5
local SMALL = 64 -- hash-max-listpack-value: a longer field would cost the record its compact form
local TOMB_MIN_MS, TOMB_MAX_MS = 60000, 86400000

local flush, complete, claim, release_one, hand_over, clear_lists, unfinished -- below
local NOTHING = {}
local hooks = {} -- the points at which extensions are called (broker/store/hooks.py)

-- Redis rolls nothing back: what a function wrote before an error stays. So a function that fails sends what it has decided and not
-- yet sent, and then reports the error. Each `callback` gathers a job's other writes only after it has written the job's record:
-- each job is then moved wholly or not at all, but for its place in line, which `reconcile` mends.
-- D59: docs/design/store.md
local function whole(callback)
  return function(keys, args)
    local todo = {}
    local ok, reply = pcall(callback, keys, args, todo)
    if ok then return reply end
    pcall(complete, keys[1], todo)
    error(reply)
  end
end

local function register(name, callback, flags)
  redis.register_function{function_name = 'penstock_' .. name .. '_' .. SUFFIX, callback = whole(callback), flags = flags}
end

-- D89: docs/design/workers-and-devices.md. The registry's edition, by which workers know that they need not read it again; and of each worker what it serves.
local REGISTRY = 'ps:{registry}:' -- of the keys of the registry, which functions use together, so that they lie in one slot
local EDITION = REGISTRY .. 'edition'
local function new_edition() redis.call('HINCRBY', EDITION, 'number', 1) end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function too_many(what) return redis.error_reply('ERR more than ' .. CLAIM_MAX .. ' jobs in one ' .. what) end

local function queue_of(p) return string.match(p, '{(.-)}') end

-- The public id of a job, as core/job.py writes it: the queue `model:2` is the model's third partition.
local function id_of(p, serial)
  local model, partition = string.match(queue_of(p), '^([^:]*):?(.*)$')
  return serial .. (partition == '' and '' or '.' .. partition) .. '-' .. model
end

local function tickets(p, band)
  local name = 'penstock.{' .. queue_of(p) .. '}'
  if band == 0 then return name end
  return name .. '\6\22' .. band
end

local function shards_of(p, version) return p .. 'shards:' .. version end

-- The number of waiting jobs, and of those in the bulk band.
local function depth(p)
  local bulk = redis.call('LLEN', tickets(p, SHARD_BAND))
  return redis.call('LLEN', tickets(p, 0)) + redis.call('LLEN', tickets(p, 6)) + bulk, bulk
end

-- The number of shards among `bulk` waiting jobs of the bulk band. Usually there are no such jobs, and nothing is looked up.
local function shards_among(p, bulk)
  local shards = 0
  if bulk == 0 then return shards end
  for _, version in ipairs(redis.call('SMEMBERS', p .. 'versions')) do
    shards = shards + redis.call('ZCARD', shards_of(p, version))
  end
  return shards
end

-- The number of waiting jobs that ordinary claims can take, and of waiting shards.
local function ordinary_depth(p)
  local all, bulk = depth(p)
  local shards = shards_among(p, bulk)
  return all - shards, shards
end
