-- What deliverers of events call: take what is due, settle it, send it once more. `p` is the prefix of a model, or that of runs.
-- D90: docs/design/webhooks.md

local TRIP = 5 -- failures in a row that close an endpoint for a while; then one event at a time tries it
local PAUSE_MOST_MS, RETRY_MOST_MS = 3600000, 86400000
local ENDPOINTS_MAX, TAKE_MAX, GIVE_UP_MAX = 100, 256, 100
local GONE_MS = 86400000 -- how long a URL that answered 410 is not called
local SKIP_MS = 1000 -- when endpoints of an owner that was passed over are looked at again
local PROGRESS_TRIES = 3
local SEND_MAX, LOGS_MAX = 1000, 1000

local function score_of_first(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) end

local function gone_key(p, endpoint, url) return p .. 'gone:' .. redis.sha1hex(endpoint .. url) end

-- Set when the endpoint is looked at again. While it is `full`, due events wait until a delivery is settled or lost.
local function look_again(p, endpoint, full)
  local due, lost = score_of_first(p .. 'events:' .. endpoint), score_of_first(p .. 'sending:' .. endpoint)
  local next = full and lost or math.min(due or math.huge, lost or math.huge)
  if next == math.huge then return redis.call('ZREM', p .. 'endpoints', endpoint) end
  local closed = tonumber(redis.call('HGET', p .. 'endpoint:' .. endpoint, 'closed') or 0)
  redis.call('ZADD', p .. 'endpoints', math.max(next, closed), endpoint)
end

-- Gives up events that waited too long at a failing endpoint, without a try: one at a time, they would take days. Tried events
-- are behind untried ones, so the first young one ends the search. Returns whether there may be more.
local function give_up_old(p, endpoint, now, call)
  for _, id in ipairs(redis.call('ZRANGE', p .. 'events:' .. endpoint, 0, GIVE_UP_MAX - 1)) do
    local since, event = unpack(redis.call('HMGET', own.event_key(p, id), 'event_since', 'event'))
    if since and event ~= own.PROGRESS then
      if now - since < call.age then return false end
      if call.given_up >= GIVE_UP_MAX then break end
      own.give_up_untried(p, id, now, 'the endpoint fails')
      call.given_up = call.given_up + 1
    end
  end
  return call.given_up >= GIVE_UP_MAX
end

-- The URL is closed. A report of progress is passed over, since the end of the job is still to come.
local function give_up_gone(p, id, event, endpoint, now)
  if event ~= own.PROGRESS then return own.give_up_untried(p, id, now, 'closed by 410') end
  redis.call('HSET', own.event_key(p, id), 'event_state', 'dismissed')
  return redis.call('ZREM', p .. 'events:' .. endpoint, id)
end

-- Take one event. The lease comes first and the place in line goes last, so that an event always has one of the two.
local function take_one(p, endpoint, id, now, call)
  local key = own.event_key(p, id)
  local webhook, url, event, state, owner, number, at, said, tries, takes = unpack(redis.call('HMGET', key, 'webhook', 'hook_url',
    'event', 'event_state', 'owner', 'event_number', 'event_at', 'event_said', 'event_tries', 'event_takes'))
  if not event or event == own.PROGRESS and state ~= '' then return redis.call('ZREM', p .. 'events:' .. endpoint, id) end
  if state ~= '' then return own.settle_places(p, id, endpoint, owner or '', state) end
  if redis.call('EXISTS', gone_key(p, endpoint, url)) == 1 then return give_up_gone(p, id, event, endpoint, now) end -- guard:gone
  takes, tries = (takes or 0) + 1, tries + 1
  redis.call('ZADD', p .. 'sending:' .. endpoint, now + call.lease, id)
  redis.call('HSET', key, 'event_takes', takes, 'event_tries', tries, unpack(event == own.PROGRESS and {'event_sent', now} or NOTHING))
  redis.call('ZREM', p .. 'events:' .. endpoint, id)
  append(call.reply, {id, takes .. '', url, owner or '', own.hook_of(webhook), event, number, at, said, tries .. ''})
  call.room = call.room - 1
  return true
end

-- The events of one endpoint that may be sent now: of one job one after the other, and at most `most` side by side. Returns whether
-- the endpoint has as many as it may.
local function take_of(p, endpoint, most, now, call)
  local sending, waiting = p .. 'sending:' .. endpoint, p .. 'events:' .. endpoint
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', sending, '-inf', now, 'LIMIT', 0, TAKE_MAX)) do
    redis.call('ZADD', waiting, now, id) -- its deliverer is gone, or too late
    redis.call('ZREM', sending, id)
  end
  local under_way = redis.call('ZCARD', sending)
  local free = most - under_way -- guard:side_by_side
  if free <= 0 then return true end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', waiting, '-inf', now, 'LIMIT', 0, free + under_way)) do
    local till = redis.call('ZSCORE', sending, id)
    if till then redis.call('ZADD', waiting, till, id) -- guard:one_of_a_job
    elseif take_one(p, endpoint, id, now, call) == true then free = free - 1 end
    if free <= 0 or call.room <= 0 then break end
  end
  return free <= 0
end

-- Whether the endpoint belongs to an owner that the caller passes over.
local function is_skipped(p, endpoint, call)
  if not call.skipped then return false end
  local id = redis.call('ZRANGE', p .. 'events:' .. endpoint, 0, 0)[1]
  return id and call.skipped[redis.call('HGET', own.event_key(p, id), 'owner') or '']
end

local function look_at(p, endpoint, now, call)
  local failures, closed = unpack(redis.call('HMGET', p .. 'endpoint:' .. endpoint, 'failures', 'closed'))
  local fails, is_open, full = tonumber(failures or 0) > 0, tonumber(closed or 0) <= now, false -- guard:closed
  if is_open and is_skipped(p, endpoint, call) then return redis.call('ZADD', p .. 'endpoints', now + SKIP_MS, endpoint) end -- guard:skipped
  if is_open then full = take_of(p, endpoint, fails and 1 or call.most, now, call) end -- guard:one_at_a_time
  local more = fails and give_up_old(p, endpoint, now, call)
  look_again(p, endpoint, full)
  if more then redis.call('ZADD', p .. 'endpoints', now, endpoint) end
end

-- take_events: take events that are due under a lease, a few of each endpoint.
-- ARGS: lease ms, most events, most of one endpoint side by side, ms after which an event is given up; per owner to pass over: owner
-- REPLY: ms until something may be due (-1: nothing waits); per event: id, token, URL, owner, letters, type, number, moment, what
--        progress says, how often it was tried, this time included
-- LARGEST: TAKE_MAX events of ENDPOINTS_MAX endpoints; GIVE_UP_MAX given up; looks at GIVE_UP_MAX of each endpoint that fails
local function take_events(keys, args)
  local p, now = keys[1], now_ms()
  local call = {lease = tonumber(args[1]), room = math.min(TAKE_MAX, tonumber(args[2])), most = tonumber(args[3]),
    age = tonumber(args[4]), given_up = 0, reply = {-1}}
  for i = 5, #args do
    call.skipped = call.skipped or {}
    call.skipped[args[i]] = true
  end
  for _, endpoint in ipairs(redis.call('ZRANGEBYSCORE', p .. 'endpoints', '-inf', now, 'LIMIT', 0, ENDPOINTS_MAX)) do
    if call.room <= 0 then break end
    look_at(p, endpoint, now, call)
  end
  local next = score_of_first(p .. 'endpoints')
  if next then call.reply[1] = math.max(0, next - now) end
  return call.reply
end

-- The effect of an attempt on its endpoint: a success opens it; failures in a row close it, as does a receiver that asks to wait.
local function note_endpoint(p, endpoint, outcome, pause, least, most, now)
  local key = p .. 'endpoint:' .. endpoint
  if outcome == 'refused' then return end
  if outcome ~= 'again' then return redis.call('DEL', key) end
  local failures, closed = redis.call('HINCRBY', key, 'failures', 1), math.min(PAUSE_MOST_MS, pause)
  if failures >= TRIP then closed = math.max(closed, math.min(most, least * 2 ^ math.min(30, failures - TRIP))) end -- guard:trip
  if closed > 0 then redis.call('HSET', key, 'closed', now + math.floor(closed)) end
  redis.call('PEXPIRE', key, math.floor(2 * PAUSE_MOST_MS))
end

-- The record of a settled attempt, and the places of its event.
local function settle_current(p, id, now, sent)
  local is_end, again, state = sent.event ~= own.PROGRESS, sent.outcome == 'again', 'delivered'
  if again and (is_end and now - sent.since < sent.age or not is_end and sent.tries < PROGRESS_TRIES) then state = '' -- guard:age
  elseif sent.outcome ~= 'delivered' then state = is_end and 'undelivered' or 'dismissed' end
  if state == 'undelivered' then
    own.give_up_event(p, id, sent.endpoint, sent.owner, now, sent.log)
    return state
  end
  redis.call('HSET', own.event_key(p, id), 'event_state', state, 'event_log', sent.log)
  if state == '' then
    local due = now + math.min(RETRY_MOST_MS, sent.retry)
    if is_end then due = math.min(due, sent.since + sent.age) end -- the last try comes at the very end
    redis.call('ZADD', p .. 'events:' .. sent.endpoint, due, id)
  elseif is_end then own.settle_places(p, id, sent.endpoint, sent.owner, state) end
  return 'ok'
end

-- settle_event: note what came of an attempt. Fenced by the token; an event that replaced the one that was sent stays due.
-- ARGS: id, token, number of the event, outcome (delivered | again | gone | refused), ms until the next try, ms for which the
--       receiver asks to be left alone, ms after which an event is given up, the attempt (number, type, try, outcome, answer and ms
--       that it took, joined by commas; without a semicolon), least ms for which failures close the endpoint, most ms
-- REPLY: ok | undelivered | stale
-- LARGEST: one event
local function settle_event(keys, args)
  local p, now, id, outcome = keys[1], now_ms(), args[1], args[4]
  local key = own.event_key(p, id)
  local webhook, url, owner, takes, number, event, since, tries, log, sent = unpack(redis.call('HMGET', key, 'webhook', 'hook_url',
    'owner', 'event_takes', 'event_number', 'event', 'event_since', 'event_tries', 'event_log', 'event_sent'))
  if not webhook or takes ~= args[2] then return 'stale' end -- guard:take
  local _, endpoint = own.hook_of(webhook)
  if not redis.call('ZSCORE', p .. 'sending:' .. endpoint, id) then return 'stale' end -- guard:sending
  local answer, is_current = 'ok', number == args[3]
  log = own.log_with(log, now, args[8])
  if outcome == 'gone' then redis.call('SET', gone_key(p, endpoint, url), '1', 'PX', GONE_MS) end
  if is_current then
    answer = settle_current(p, id, now, {event = event, endpoint = endpoint, owner = owner or '', since = since,
      tries = tonumber(tries), log = log, outcome = outcome, retry = tonumber(args[5]), age = tonumber(args[7])})
  else
    local due = event == own.PROGRESS and math.max(now, (sent or 0) + own.PROGRESS_MS) or now
    redis.call('HSET', key, 'event_log', log)
    if redis.call('ZSCORE', p .. 'events:' .. endpoint, id) then redis.call('ZADD', p .. 'events:' .. endpoint, due, id) end
  end
  note_endpoint(p, endpoint, outcome, tonumber(args[6]), tonumber(args[9]), tonumber(args[10]), now)
  -- The lease goes last: a call that fails before is made up for when it ends.
  redis.call('ZREM', p .. 'sending:' .. endpoint, id)
  look_again(p, endpoint, false)
  return answer
end

local function put_back(p, id, key, owner, now)
  local webhook, url = unpack(redis.call('HMGET', key, 'webhook', 'hook_url'))
  local _, endpoint = own.hook_of(webhook)
  redis.call('DEL', gone_key(p, endpoint, url), p .. 'endpoint:' .. endpoint)
  redis.call('ZADD', p .. 'events:' .. endpoint, now, id)
  redis.call('ZADD', p .. 'endpoints', now, endpoint)
  redis.call('ZADD', p .. 'pending:' .. owner, 0, id)
  redis.call('HSET', key, 'event_state', '', 'event_since', now, 'event_tries', 0)
  redis.call('ZREM', p .. 'undelivered', id)
  redis.call('ZREM', p .. 'undelivered:' .. owner, id)
end

-- send_events: send the last events of ended jobs or runs once more, or take them off the list of what was given up.
-- ARGS: again | dismiss, whose ('' = any owner's, else '=' and the owner); per event: id
-- REPLY: number of those for which it was done
-- LARGEST: SEND_MAX events
local function send_events(keys, args)
  if #args > SEND_MAX + 2 then return redis.error_reply('ERR more than ' .. SEND_MAX .. ' events in one call') end
  local p, now, again, done = keys[1], now_ms(), args[1] == 'again', 0
  for i = 3, #args do
    local key = own.event_key(p, args[i])
    local owner, state, event = unpack(redis.call('HMGET', key, 'owner', 'event_state', 'event'))
    if not event then own.list_undelivered(p, args[i], owner or string.sub(args[2], 2), 'dismissed') end -- its record is gone
    local theirs = args[2] == '' or args[2] == '=' .. (owner or '') -- guard:their_events
    local was_sent = event and event ~= own.PROGRESS and state ~= '' and state ~= 'unasked' -- guard:sent_before
    if theirs and was_sent and (again or state == 'undelivered') then
      if again then put_back(p, args[i], key, owner or '', now) else own.dismiss_event(p, args[i], owner or '') end
      done = done + 1
    end
  end
  if done > 0 and again then redis.call('PUBLISH', own.EVENTS, p) end
  return done
end

-- event_logs: what became of the events of jobs or runs.
-- ARGS: per job or run: id
-- REPLY: per id: webhook (nil if it has none), URL, owner, type, state, number, moment, log; what is not there is nil
-- LARGEST: LOGS_MAX ids
local function event_logs(keys, args)
  if #args > LOGS_MAX then return redis.error_reply('ERR more than ' .. LOGS_MAX .. ' logs in one call') end
  local reply = {}
  for i, id in ipairs(args) do
    reply[i] = redis.call('HMGET', own.event_key(keys[1], id), 'webhook', 'hook_url', 'owner', 'event', 'event_state', 'event_number',
      'event_at', 'event_log')
  end
  return reply
end

-- event_counts: how many events wait.
-- ARGS: none
-- REPLY: events that are due, now or later, over the first COUNTED endpoints; events that were given up
-- LARGEST: COUNTED endpoints
local COUNTED = 1000
local function event_counts(keys)
  local p, waiting = keys[1], 0
  for _, endpoint in ipairs(redis.call('ZRANGE', p .. 'endpoints', 0, COUNTED - 1)) do
    waiting = waiting + redis.call('ZCARD', p .. 'events:' .. endpoint) + redis.call('ZCARD', p .. 'sending:' .. endpoint)
  end
  return {waiting, redis.call('ZCARD', p .. 'undelivered')}
end

register('take_events', take_events, {'allow-oom'})
register('settle_event', settle_event, {'allow-oom'})
register('send_events', send_events, {'allow-oom'})
register('event_logs', event_logs, {'no-writes', 'allow-stale'})
register('event_counts', event_counts, {'no-writes', 'allow-stale'})
