-- Events of jobs and runs that have a webhook. The command that ends a job also writes the event into the job's record.
-- A job or run without a webhook costs nothing here. `p` is the prefix of a model, or that of runs.
-- D90: docs/design/webhooks.md
-- field: webhook
--
-- The word of a submit: letters of the wanted events, endpoint, most undelivered events of the owner, URL.
-- Fields of the record: webhook (letters of the wanted events, and the endpoint), hook_url; of the last event: event (its type),
--   event_number (counted up), event_at, event_since (start of its schedule), event_said (of progress), event_tries, event_sent (when
--   progress was last taken), event_takes (how often events were taken: the token of the delivery under way), event_log (attempts),
--   event_state: '' = to be delivered | delivered | undelivered (given up) | dismissed | unasked (the webhook wants no event of this end)
-- Beside the record:
--   endpoints            zset  endpoint -> when something may be due there, or earlier
--   events:<endpoint>    zset  id -> when its event is due
--   sending:<endpoint>   zset  id -> end of the lease of its event's delivery
--   endpoint:<endpoint>  hash  failures: in a row; closed: until then nothing is sent there
--   pending:<owner>      zset  ids whose last event has not been delivered or given up, score 0: what an owner's bound counts
--   undelivered, undelivered:<owner>   zset  ids whose event was given up, score 0
--   gone:<sha1 of endpoint and URL>    string  the receiver answered 410: nothing is sent there

own.EVENTS = 'ps:events' -- the channel on which deliverers hear which prefix may have something due
own.PROGRESS = 'job.progress'
own.PROGRESS_MS = 500 -- between two events of progress of one job
local OF_RUNS = 'ps:runs:{runs}:'
local UNDELIVERED_MAX = 1000 -- given up events that are listed of one owner
local UNDELIVERED_MS = 86400000 -- how long the record of a given up event is kept at least
local LOG_MOST = 20
local HELD_MOST_MS = 172800000 -- how long an ended record is kept for an event that is neither delivered nor given up
local WORD = '^(%a*) (%w+) (%d+) (.+)$'

local LETTERS = {succeeded = 's', completed = 's', failed = 'f', dead = 'f', cancelled = 'c', expired = 'x'}

function own.event_key(p, id) return p .. (p == OF_RUNS and 'run:' or 'job:') .. id end

function own.hook_of(webhook) return string.match(webhook, '^(%a*),(%w+)$') end

-- The event of this end, nil if the webhook does not want it; and the endpoint.
function own.end_event(p, webhook, state)
  local wanted, endpoint = own.hook_of(webhook)
  if not string.find(wanted, LETTERS[state], 1, true) then return nil, endpoint end -- guard:wanted
  return (p == OF_RUNS and 'run.' or 'job.') .. (state == 'dead' and 'failed' or state), endpoint
end

-- What the record says of a new event. A number never names two events, so that equal ids are equal bodies.
function own.event_fields(p, id, event, now, said)
  local number = (redis.call('HGET', own.event_key(p, id), 'event_number') or 0) + 1 -- guard:number
  return {'event', event, 'event_number', number, 'event_at', now, 'event_since', now, 'event_said', said or '', 'event_tries', 0,
    'event_state', ''}
end

-- What a record says beside its end.
local function end_fields(p, id, webhook, state, now)
  local event = own.end_event(p, webhook, state)
  return event and own.event_fields(p, id, event, now) or {'event_state', 'unasked'}
end

-- hook: asked
-- Whether the owner is at its limit of undelivered events. Only then this checks whether the records of the first ones were
-- deleted.
function own.asked(p, word, owner, call)
  local _, _, most = string.match(word, WORD)
  local pending, added = p .. 'pending:' .. owner, call.pending and call.pending[owner] or 0
  if redis.call('ZCARD', pending) + added < tonumber(most) then return end -- guard:behind
  for _, id in ipairs(redis.call('ZRANGE', pending, 0, 3)) do
    if redis.call('EXISTS', p .. 'job:' .. id) == 0 then redis.call('ZREM', pending, id) end
  end
  if redis.call('ZCARD', pending) + added >= tonumber(most) then return 'undelivered' end
end

-- hook: drafted
-- The record holds all that its end needs to write the event.
function own.drafted(p, word, owner, call, record)
  local wanted, endpoint, _, url = string.match(word, WORD)
  append(record, {'webhook', wanted .. ',' .. endpoint, 'hook_url', url})
  call.pending = call.pending or {}
  call.pending[owner] = (call.pending[owner] or 0) + 1
end

-- hook: submitted
-- A job that was handed over in the call of its submit may have ended in it, past its deadline.
function own.submitted(p, word, id, owner, status, todo)
  if status ~= 'created' or redis.call('HGET', own.event_key(p, id), 'event_state') == 'unasked' then return end -- guard:ended_at_once
  later(todo, 'ZADD', p .. 'pending:' .. owner, 0, id)
end

-- hook: ending
function own.ending(p, id, job, state, now)
  job.noted = job.noted or {}
  append(job.noted, end_fields(p, id, job.webhook, state, now))
end

-- Notify deliverers: the message is sent after all writes.
function own.place_event(p, id, endpoint, due, now, todo)
  later(todo, 'ZADD', p .. 'events:' .. endpoint, due, id)
  later(todo, 'ZADD', p .. 'endpoints', now, endpoint)
  todo.pushes = todo.pushes or {}
  todo.pushes[own.EVENTS] = {p}
end

-- hook: ended
-- The places of an event behind the record of its end.
function own.ended(p, id, job, state, now, todo)
  local event, endpoint = own.end_event(p, job.webhook, state)
  if event then return own.place_event(p, id, endpoint, now, now, todo) end
  later(todo, 'ZREM', p .. 'events:' .. endpoint, id)
  later(todo, 'ZREM', p .. 'pending:' .. (job.owner or ''), id)
end

-- hook: reported
-- Of progress only the last is kept, and it is due PROGRESS_MS after the one before was taken. The end replaces it.
function own.reported(p, serial, job, progress, now, todo)
  if progress == '' then return end
  local wanted, endpoint = own.hook_of(job.webhook)
  if not string.find(wanted, 'p', 1, true) then return end
  local key = own.event_key(p, serial)
  local due = math.max(now, (redis.call('HGET', key, 'event_sent') or 0) + own.PROGRESS_MS) -- guard:progress_pace
  redis.call('HSET', key, unpack(own.event_fields(p, serial, own.PROGRESS, now, progress)))
  own.place_event(p, serial, endpoint, due, now, todo)
end

-- Given up events are listed, others are not. Returns how much was changed.
function own.list_undelivered(p, id, owner, state)
  local changed = 0
  for _, list in ipairs({'undelivered', 'undelivered:' .. owner}) do
    if state == 'undelivered' then changed = changed + redis.call('ZADD', p .. list, 'NX', 0, id)
    else changed = changed + redis.call('ZREM', p .. list, id) end
  end
  return changed
end

-- An event that will not be delivered any more is in no line. Returns how much was changed.
function own.settle_places(p, id, endpoint, owner, state)
  return redis.call('ZREM', p .. 'events:' .. endpoint, id) + redis.call('ZREM', p .. 'pending:' .. owner, id)
    + own.list_undelivered(p, id, owner, state)
end

function own.dismiss_event(p, id, owner)
  local key = own.event_key(p, id)
  if redis.call('EXISTS', key) == 1 then redis.call('HSET', key, 'event_state', 'dismissed') end
  own.list_undelivered(p, id, owner, 'dismissed')
end

function own.log_with(log, now, attempt)
  local entries = {}
  for one in string.gmatch(log or '', '[^;]+') do entries[#entries + 1] = one end
  entries[#entries + 1] = now .. ',' .. attempt
  return table.concat(entries, ';', math.max(1, #entries - LOG_MOST + 1))
end

-- The event is not tried any more. Its record stays for a while, so that the event can be sent once more by hand.
function own.give_up_event(p, id, endpoint, owner, now, log)
  redis.call('HSET', own.event_key(p, id), 'event_state', 'undelivered', 'event_log', log)
  own.settle_places(p, id, endpoint, owner, 'undelivered')
  local collected = p ~= OF_RUNS and redis.call('ZSCORE', p .. 'final', id)
  if collected and tonumber(collected) < now + UNDELIVERED_MS then redis.call('ZADD', p .. 'final', now + UNDELIVERED_MS, id) end
  local given_up = p .. 'undelivered:' .. owner
  if redis.call('ZCARD', given_up) > UNDELIVERED_MAX then own.dismiss_event(p, redis.call('ZRANGE', given_up, 0, 0)[1], owner) end -- guard:undelivered_max
end

-- As `give_up_event`, for an event that no deliverer has under way.
function own.give_up_untried(p, id, now, why)
  local webhook, owner, number, event, tries, log =
    unpack(redis.call('HMGET', own.event_key(p, id), 'webhook', 'owner', 'event_number', 'event', 'event_tries', 'event_log'))
  local _, endpoint = own.hook_of(webhook)
  local attempt = table.concat({number or 0, event or '', tries or 0, 'skipped', why, 0}, ',')
  own.give_up_event(p, id, endpoint, owner or '', now, own.log_with(log, now, attempt))
end

-- Where a job or run with a webhook may stand beside the line of its endpoint.
local function lists_of(owner) return {'pending:' .. owner, 'undelivered', 'undelivered:' .. owner} end

-- hook: dropping
-- A record stays while its event is still to be delivered, because the event's body is built from it. An event that is never
-- delivered is given up at last, and that of a run is dropped with the run.
function own.dropping(p, id, job)
  local event_state, since = unpack(redis.call('HMGET', own.event_key(p, id), 'event_state', 'event_since'))
  if (event_state or '') ~= '' then return false end
  local now = now_ms()
  local overdue = since and now - since >= HELD_MOST_MS
  if overdue and p == OF_RUNS then return false end
  if overdue then own.give_up_untried(p, id, now, 'nobody delivered it') end -- guard:held_most
  return true
end

-- hook: leaving
function own.leaving(p, id, job, owner)
  for _, list in ipairs(lists_of(owner)) do redis.call('ZREM', p .. list, id) end
end

-- hook: dropped
-- The line goes last: while there is a record, its event is delivered.
function own.dropped(p, id, job, todo)
  local _, endpoint = own.hook_of(job.webhook)
  later(todo, 'ZREM', p .. 'events:' .. endpoint, id)
end

-- hook: reopened
-- The end that the event reports is taken back, so the event is not sent any more. A delivery under way settles nothing.
function own.reopened(p, id, job)
  local key = own.event_key(p, id)
  redis.call('HINCRBY', key, 'event_number', 1)
  redis.call('HDEL', key, 'event', 'event_state')
  local _, endpoint = own.hook_of(job.webhook)
  redis.call('ZREM', p .. 'events:' .. endpoint, id)
  own.leaving(p, id, job, job.owner)
  redis.call('ZADD', p .. 'pending:' .. job.owner, 0, id)
end

-- hook: mended
-- A job that has ended has its event, and the event has its places. Returns whether anything was missing, or in a wrong place.
function own.mended(p, id, job, now, todo)
  local owner = job.owner or ''
  if not job.finished then return redis.call('ZADD', p .. 'pending:' .. owner, 'NX', 0, id) == 1 end
  local event, endpoint = own.end_event(p, job.webhook, job.state)
  local last, state = unpack(redis.call('HMGET', own.event_key(p, id), 'event', 'event_state'))
  local mended = false
  state = state or ''
  if event and last ~= event or not event and state ~= 'unasked' then
    redis.call('HSET', own.event_key(p, id), unpack(end_fields(p, id, job.webhook, job.state, now)))
    state, mended = event and '' or 'unasked', true
  end
  if state ~= '' then return own.settle_places(p, id, endpoint, owner, state) > 0 or mended end
  mended = redis.call('ZADD', p .. 'pending:' .. owner, 'NX', 0, id) + own.list_undelivered(p, id, owner, state) > 0 or mended
  local placed = redis.call('ZSCORE', p .. 'events:' .. endpoint, id) or redis.call('ZSCORE', p .. 'sending:' .. endpoint, id)
  if placed and redis.call('ZSCORE', p .. 'endpoints', endpoint) then return mended end
  own.place_event(p, id, endpoint, now, now, todo)
  return true
end
