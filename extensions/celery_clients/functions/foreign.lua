-- Stock Celery messages: drawn from the queues of Celery's clients, passed to the model that they ask for, or answered.
--   foreign   zset   message -> when to hand it out; ps:{*}:foreign: messages whose model no worker has looked up yet
-- D81: docs/design/store.md
local DRAW_MAX = 64
local FOREIGN_MAX = 16
local AGAIN_MS = 15000

-- hook: drawn
-- A message that a client put into the queue of a model, where its tickets lie.
function own.drawn(p, entry) redis.call('ZADD', p .. 'foreign', 'NX', 0, entry) end

-- Up to `most` entries of a sorted set, for a worker to deal with. Each is handed out again after AGAIN_MS, unless the worker has
-- removed it by then.
local function hand_out(key, now, most)
  local entries, handed = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, most), {}
  for _, entry in ipairs(entries) do append(handed, {now + AGAIN_MS, entry}) end
  send('ZADD', key, handed)
  return entries
end

-- While jobs wait, messages are met when tickets are popped; while none waits, the ticket lists hold nothing else.
local function draw_stuck(p)
  for _, band in ipairs(BANDS) do
    local jobs = 0
    for _, version in ipairs(redis.call('SMEMBERS', p .. 'versions')) do
      jobs = jobs + standing(p, version, 1, true) + redis.call('ZCARD', p .. 'solo:' .. version)
      if band == SHARD_BAND then jobs = jobs + redis.call('ZCARD', shards_of(p, version)) end
    end
    if jobs == 0 and redis.call('LLEN', tickets(p, band)) > 0 then draw(p, band, FOREIGN_MAX) end
  end
end

-- hook: claimed
-- Hand messages to one worker at a time, and again after a while if that worker did not store them as jobs.
function own.claimed(p, now, idle)
  if idle then draw_stuck(p) end
  if redis.call('EXISTS', p .. 'foreign') == 0 then return NOTHING end
  return hand_out(p .. 'foreign', now, FOREIGN_MAX)
end

-- draw_messages: take messages out of these lists, in order, and keep them in `foreign`. Those of the door, `ps:{*}:`, are handed
-- out to the caller, who passes each on or answers it. Those of a model are handed out by its claims.
-- ARGS: '1' to hand out; per list: name
-- REPLY: the messages that were handed out
-- LARGEST: draws DRAW_MAX messages, hands out as many
local function draw_messages(keys, args, todo)
  local p, room, drawn = keys[1], DRAW_MAX, 0
  for i = 2, #args do
    if room <= 0 then break end
    -- pcall: a key that is not a list is not a queue either.
    for _, entry in ipairs(redis.pcall('RPOP', args[i], room) or {}) do
      room = room - 1
      if entry ~= TICKET then drawn = drawn + redis.call('ZADD', p .. 'foreign', 'NX', 0, entry) end
    end
  end
  if args[1] == '1' then return hand_out(p .. 'foreign', now_ms(), DRAW_MAX) end
  if drawn > 0 then redis.call('SPUBLISH', p .. 'wake', 'w') end
  return {}
end

-- pass_messages: give messages of the door to the models that they ask for.
-- ARGS: per message: model, message
-- REPLY: ok
-- LARGEST: DRAW_MAX messages
local function pass_messages(keys, args, todo)
  for i = 1, #args, 2 do
    local p = 'ps:{' .. args[i] .. '}:'
    redis.call('ZADD', p .. 'foreign', 'NX', 0, args[i + 1])
    redis.call('ZREM', keys[1] .. 'foreign', args[i + 1])
    redis.call('SPUBLISH', p .. 'wake', 'w')
  end
  return 'ok'
end

-- reject_foreign: answer a stock Celery message that cannot become a job, and forget the message.
-- ARGS: message, tasks (as in the record's field `celery`; '' = unreadable), code, reason
-- REPLY: ok
-- LARGEST: one message
local function reject_foreign(keys, args, todo)
  local p = keys[1]
  if not redis.call('ZSCORE', p .. 'foreign', args[1]) then return 'ok' end
  if args[2] ~= '' then
    local state = args[3] == 'invalid_message' and 'failed' or args[3]
    own.ended(p, '', {celery = args[2]}, state, 0, todo, {code = args[3], message = args[4]})
  end
  later(todo, 'ZREM', p .. 'foreign', args[1])
  count(todo, 'foreign_rejected', 1)
  flush(p, todo)
  return 'ok'
end

-- due_answers: jobs whose tasks the caller is to answer. Each is handed out again after a while if it was not.
-- ARGS: limit
-- REPLY: per job: its id
-- LARGEST: DRAW_MAX jobs
local function due_answers(keys, args, todo)
  return hand_out(own.ANSWERS, now_ms(), math.min(DRAW_MAX, tonumber(args[1])))
end

local function can_send(list)
  return redis.acl_check_cmd('LPUSH', list, '') and type(redis.pcall('LLEN', list)) == 'number'
end

-- answer: write the answers to Celery tasks and send the messages that follow a job, unless another worker has. A client that waits
-- for an answer gets it. If one of them cannot be sent, none is, and the job is handed out again.
-- ARGS: job id; per answer or message: 'task' | 'queue', the task's id or the queue's list, text
-- REPLY: the list that cannot be written to; empty if all is sent
-- LARGEST: one job, with what follows it (follow_ups.py: MOST)
local function answer(keys, args, todo)
  if not redis.call('ZSCORE', own.ANSWERS, args[1]) then return '' end
  for i = 2, #args, 3 do
    if args[i] == 'queue' and not can_send(args[i + 1]) then return args[i + 1] end
  end
  for i = 2, #args, 3 do
    if args[i] == 'queue' then redis.call('LPUSH', args[i + 1], args[i + 2])
    else
      redis.call('SET', own.META .. args[i + 1], args[i + 2], 'PX', own.META_TTL_MS)
      redis.call('PUBLISH', own.META .. args[i + 1], args[i + 2])
    end
  end
  redis.call('ZREM', own.ANSWERS, args[1])
  return ''
end

-- may_send: whether the caller can write to a list, as `answer` will: its user may, and no key of another type has the name.
-- ARGS: list
-- REPLY: 1 or 0
local function may_send(keys, args) return can_send(args[1]) and 1 or 0 end

register('draw_messages', draw_messages, {'allow-oom'})
register('pass_messages', pass_messages, {'allow-oom'})
register('reject_foreign', reject_foreign, {'allow-oom'})
register('due_answers', due_answers, {'allow-oom'})
register('answer', answer, {'allow-oom'})
register('may_send', may_send, {'no-writes'})
