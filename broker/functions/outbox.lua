-- Events of jobs and runs that have a webhook. Whoever ends the job writes its event into the job's record, in the same command as
-- the end. A job or run without a webhook costs nothing here. `p` is the prefix of a model, or that of runs.
-- D90: docs/design/webhooks.md
--
-- Fields of the record: webhook (letters of the wanted events, and the endpoint), hook_url; of the last event: event (its type),
--   event_number (counted up), event_at, event_since (begin of its schedule), event_said (of progress), event_tries, event_sent (when
--   progress was last taken), event_takes (how often events were taken: the token of the delivery under way), event_log (attempts),
--   event_state: '' = to be delivered | delivered | undelivered (given up) | dismissed | unasked (nobody wants to hear of this end)
-- Beside the record:
--   endpoints            zset  endpoint -> when something may be due there, or earlier
--   events:<endpoint>    zset  id -> when its event is due
--   sending:<endpoint>   zset  id -> end of the lease of who delivers its event
--   endpoint:<endpoint>  hash  failures: in a row; closed: until then nothing is sent there
--   pending:<owner>      zset  ids whose last event has not been delivered or given up, score 0: what an owner's bound counts
--   undelivered, undelivered:<owner>   zset  ids whose event was given up, score 0
--   gone:<sha1 of endpoint and URL>    string  the receiver answered 410: nothing is sent there

local outbox = {} -- its functions: Lua allows 200 local names in one block

local EVENTS = 'ps:events' -- the channel on which deliverers hear which prefix may have something due
local OF_RUNS = 'ps:runs:{runs}:'
local PROGRESS = 'job.progress'
local PROGRESS_MS = 500 -- between two events of progress of one job
local UNDELIVERED_MAX = 1000 -- given up events that are listed of one owner
local UNDELIVERED_MS = 86400000 -- for so long the record of a given up event is kept at least
local LOG_MOST = 20

local LETTERS = {succeeded = 's', completed = 's', failed = 'f', dead = 'f', cancelled = 'c', expired = 'x'}

function outbox.event_key(p, id) return p .. (p == OF_RUNS and 'run:' or 'job:') .. id end

function outbox.hook_of(webhook) return string.match(webhook, '^(%a*),(%w+)$') end

-- The event of this end, nil if nobody wants it; and the endpoint.
function outbox.end_event(p, webhook, state)
  local wanted, endpoint = outbox.hook_of(webhook)
  if not string.find(wanted, LETTERS[state], 1, true) then return nil, endpoint end -- guard:wanted
  return (p == OF_RUNS and 'run.' or 'job.') .. (state == 'dead' and 'failed' or state), endpoint
end

-- What the record says of a new event. A number never names two events, so that equal ids are equal bodies.
function outbox.event_fields(p, id, event, now, said)
  local number = (redis.call('HGET', outbox.event_key(p, id), 'event_number') or 0) + 1 -- guard:number
  return {'event', event, 'event_number', number, 'event_at', now, 'event_since', now, 'event_said', said or '', 'event_tries', 0,
    'event_state', ''}
end

-- What a record says beside its end.
function outbox.end_fields(p, id, webhook, state, now)
  local event = outbox.end_event(p, webhook, state)
  return event and outbox.event_fields(p, id, event, now) or {'event_state', 'unasked'}
end

-- Whether the event of an ended job or run is still to be delivered, so that its record has to stay.
function outbox.is_pending(webhook, event_state) return webhook and (event_state or '') == '' end

-- Let deliverers hear of it: the message is sent when all else is written.
function outbox.place_event(p, id, endpoint, due, now, todo)
  later(todo, 'ZADD', p .. 'events:' .. endpoint, due, id)
  later(todo, 'ZADD', p .. 'endpoints', now, endpoint)
  todo.pushes = todo.pushes or {}
  todo.pushes[EVENTS] = {p}
end

-- The places of an event behind the record of its end.
function outbox.place_end(p, id, webhook, owner, state, now, todo)
  local event, endpoint = outbox.end_event(p, webhook, state)
  if event then return outbox.place_event(p, id, endpoint, now, now, todo) end
  later(todo, 'ZREM', p .. 'events:' .. endpoint, id)
  later(todo, 'ZREM', p .. 'pending:' .. (owner or ''), id)
end

-- Of progress only the last is kept, and it is due PROGRESS_MS after the one before was taken. The end replaces it.
function outbox.note_progress(p, serial, webhook, progress, now, todo)
  local wanted, endpoint = outbox.hook_of(webhook)
  if not string.find(wanted, 'p', 1, true) then return end
  local key = outbox.event_key(p, serial)
  local due = math.max(now, (redis.call('HGET', key, 'event_sent') or 0) + PROGRESS_MS) -- guard:progress_pace
  redis.call('HSET', key, unpack(outbox.event_fields(p, serial, PROGRESS, now, progress)))
  outbox.place_event(p, serial, endpoint, due, now, todo)
end

-- Given up events are listed, others are not. Returns how much was changed.
function outbox.list_undelivered(p, id, owner, state)
  local changed = 0
  for _, list in ipairs({'undelivered', 'undelivered:' .. owner}) do
    if state == 'undelivered' then changed = changed + redis.call('ZADD', p .. list, 'NX', 0, id)
    else changed = changed + redis.call('ZREM', p .. list, id) end
  end
  return changed
end

-- An event that is not to be delivered any more stands in no line. Returns how much was changed.
function outbox.settle_places(p, id, endpoint, owner, state)
  return redis.call('ZREM', p .. 'events:' .. endpoint, id) + redis.call('ZREM', p .. 'pending:' .. owner, id)
    + outbox.list_undelivered(p, id, owner, state)
end

function outbox.dismiss_event(p, id, owner)
  local key = outbox.event_key(p, id)
  if redis.call('EXISTS', key) == 1 then redis.call('HSET', key, 'event_state', 'dismissed') end
  outbox.list_undelivered(p, id, owner, 'dismissed')
end

function outbox.log_with(log, now, attempt)
  local entries = {}
  for one in string.gmatch(log or '', '[^;]+') do entries[#entries + 1] = one end
  entries[#entries + 1] = now .. ',' .. attempt
  return table.concat(entries, ';', math.max(1, #entries - LOG_MOST + 1))
end

-- The event is not tried any more. Its record stays for a while, so that the event can be sent once more by hand.
function outbox.give_up_event(p, id, endpoint, owner, now, log)
  redis.call('HSET', outbox.event_key(p, id), 'event_state', 'undelivered', 'event_log', log)
  outbox.settle_places(p, id, endpoint, owner, 'undelivered')
  local collected = p ~= OF_RUNS and redis.call('ZSCORE', p .. 'final', id)
  if collected and tonumber(collected) < now + UNDELIVERED_MS then redis.call('ZADD', p .. 'final', now + UNDELIVERED_MS, id) end
  local own = p .. 'undelivered:' .. owner
  if redis.call('ZCARD', own) > UNDELIVERED_MAX then outbox.dismiss_event(p, redis.call('ZRANGE', own, 0, 0)[1], owner) end -- guard:undelivered_max
end

-- As `give_up_event`, for an event that nobody has under way.
function outbox.give_up_untried(p, id, now, why)
  local webhook, owner, number, event, tries, log =
    unpack(redis.call('HMGET', outbox.event_key(p, id), 'webhook', 'owner', 'event_number', 'event', 'event_tries', 'event_log'))
  local _, endpoint = outbox.hook_of(webhook)
  local attempt = table.concat({number or 0, event or '', tries or 0, 'skipped', why, 0}, ',')
  outbox.give_up_event(p, id, endpoint, owner or '', now, outbox.log_with(log, now, attempt))
end

-- Where a job or run with a webhook may stand, all of which it leaves when it is dropped.
function outbox.event_places(webhook, owner)
  local _, endpoint = outbox.hook_of(webhook)
  return {'events:' .. endpoint, 'pending:' .. owner, 'undelivered', 'undelivered:' .. owner}
end

-- A job that has ended has its event, and the event has its places. Returns whether anything was missing, or in a wrong place.
function outbox.mend_event(p, id, job, now, todo)
  local owner = job.owner or ''
  if not job.finished then return redis.call('ZADD', p .. 'pending:' .. owner, 'NX', 0, id) == 1 end
  local event, endpoint = outbox.end_event(p, job.webhook, job.state)
  local state, mended = job.event_state or '', false
  if event and job.event ~= event or not event and state ~= 'unasked' then
    redis.call('HSET', outbox.event_key(p, id), unpack(outbox.end_fields(p, id, job.webhook, job.state, now)))
    state, mended = event and '' or 'unasked', true
  end
  if state ~= '' then return outbox.settle_places(p, id, endpoint, owner, state) > 0 or mended end
  mended = redis.call('ZADD', p .. 'pending:' .. owner, 'NX', 0, id) + outbox.list_undelivered(p, id, owner, state) > 0 or mended
  local placed = redis.call('ZSCORE', p .. 'events:' .. endpoint, id) or redis.call('ZSCORE', p .. 'sending:' .. endpoint, id)
  if placed and redis.call('ZSCORE', p .. 'endpoints', endpoint) then return mended end
  outbox.place_event(p, id, endpoint, now, now, todo)
  return true
end
