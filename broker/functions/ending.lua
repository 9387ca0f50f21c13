-- How an attempt ends and how a job ends: the record, the pushes to watchers, and what is dropped.

-- Eight texts, each behind its length, packed in one call: packing them one by one takes three times as long.
local function frame(a, b, c, d, e, f, g, h)
  return struct.pack('>I4c0I4c0I4c0I4c0I4c0I4c0I4c0I4c0', #a, a, #b, b, #c, c, #d, d, #e, e, #f, f, #g, g, #h, h)
end

-- Push a change to the job's watchers. A watcher is a channel behind a mark: '=' wants the end only, '+' every change. All changes
-- of one call go in one message per channel, so that a settled batch wakes a gateway once. Behind the marks of extensions stands
-- what they left there.
-- D6: docs/design/store.md
local function push_change(todo, p, watch, final, serial, ...)
  if not watch or watch == '' then return end
  todo.pushes = todo.pushes or {}
  local change
  for mark, channel in string.gmatch(watch, '([^,])([^,]+)') do
    if mark == '+' or final and mark == '=' then
      change = change or frame(serial, ...)
      local list = todo.pushes[channel] or {struct.pack('>I4c0', #queue_of(p), queue_of(p))}
      list[#list + 1] = change
      todo.pushes[channel] = list
    elseif mark ~= '=' then hooks.watched(p, mark, channel, serial, final, todo)
    end
  end
end

local function drop_input(p, serial, small, todo)
  if small then later(todo, 'HDEL', p .. 'job:' .. serial, 'in') else drop(todo, p .. 'in:' .. serial) end
end

-- The one way into a final state. `job` holds at least ttl, watch, owner, in and the fields of extensions; the caller has taken it out
-- of ready, solo or delayed, and takes it out of held. `last` may have media, output, blob, code, message, stamp and token; absent ones count as
-- empty. A large output is stored before, so that no reader meets a success without its output. One command is sent at once, the
-- record's; all others are gathered.
local function end_job(p, serial, job, state, now, todo, last)
  local media, blob = last.media or '', last.blob or ''
  local code, message = last.code or '', last.message or ''
  local key = p .. 'job:' .. serial
  hooks.ending(p, serial, job, state, now)
  if state == 'succeeded' then
    local small = blob == '' and #last.output <= SMALL
    redis.call('HSET', key, 'state', state, 'finished', now, 'token', '', 'final_token', last.token, 'stamp', last.stamp,
      'out_media', media, small and 'out' or 'out_blob', small and last.output or blob, unpack(job.noted or NOTHING))
    if job.code then later(todo, 'HDEL', key, 'code', 'message', 'traceback') end
  else
    redis.call('HSET', key, 'state', state, 'finished', now, 'token', '', 'final_token', last.token or '', 'stamp', last.stamp or '',
      'code', code, 'message', message, unpack(job.noted or NOTHING))
    if state ~= 'cancelled' then
      later(todo, 'ZADD', p .. 'inbox', 0, serial)
      if job.owner and job.owner ~= '' then later(todo, 'ZADD', p .. 'inbox:' .. job.owner, 0, serial) end
    end
  end
  -- A failed, dead or expired job keeps its input for a replay; other jobs no longer need theirs (D13: docs/design/store.md).
  if state == 'succeeded' or state == 'cancelled' then drop_input(p, serial, job['in'], todo) end
  todo.ended = todo.ended or {}
  append(todo.ended, {now + job.ttl, serial})
  count(todo, 'ended:' .. state, 1)
  count_open(todo, job.owner, -1)
  if not last.token then tell(todo, 'finished', serial, state, job) end -- no holder reports it
  push_change(todo, p, job.watch, true, serial, state, media, last.output or '', blob, code, message, last.stamp or '')
  hooks.ended(p, serial, job, state, now, todo, last)
end

-- Fields of a record by their names; an absent one is false.
local function read_fields(key, fields)
  local values, record = redis.call('HMGET', key, unpack(fields)), {}
  for i, field in ipairs(fields) do record[field] = values[i] end
  return record
end

local function load_job(p, serial, fields)
  local job = read_fields(p .. 'job:' .. serial, fields)
  job.attempts, job.crashes, job.losses = tonumber(job.attempts or 0), tonumber(job.crashes or 0), tonumber(job.losses or 0)
  if job.terms then
    local attempts, crashes = string.match(job.terms, '^(%d+),(%d+)')
    job.max_attempts, job.max_crashes = tonumber(attempts), tonumber(crashes)
  end
  job.in_a_row = tonumber(job.in_a_row or 0)
  return job
end

-- A record is gone: the entries that only it named have to be looked for in all lists (see lists.lua).
local function read_lists_again(p, todo) later(todo, 'HSET', p .. 'strays', 'again', '1') end

-- Drop an ended job's record and output; returns the names of its own blobs, which begin with its serial (D101:
-- docs/design/pipelines.md), its owner, and for how many ms its result was to be kept.
-- Nothing is dropped and returned while an extension still needs the record.
-- The record goes first and the entry in `index` last, by which `reconcile` finds what a call that fails leaves. The lists of its
-- owner and of its tags come before, because only the record names these.
local function drop_job(p, serial, todo)
  local key, blobs = p .. 'job:' .. serial, {}
  local job = read_fields(key, {'blob', 'out_blob', 'owner', 'ttl', 'code', 'tags', @fields.dropped})
  if hooks.dropping(p, serial, job) then return end -- guard:pending
  local owner = job.owner
  for _, ref in ipairs({job.blob or '', job.out_blob or ''}) do
    if string.sub(ref, 1, #serial) == serial then blobs[#blobs + 1] = ref end -- guard:own_blob
  end
  if owner then
    redis.call('ZREM', p .. 'index:' .. owner, serial)
    if job.code then redis.call('ZREM', p .. 'inbox:' .. owner, serial) end
  end
  for _, entry in ipairs(tag_entries(job.tags, serial)) do
    for _, list in ipairs(tag_lists(p, owner)) do redis.call('ZREM', list, entry) end -- guard:untag
  end
  hooks.leaving(p, serial, job, owner or '')
  if owner then forget_owner(p, owner) end
  redis.call('DEL', key, p .. 'in:' .. serial, p .. 'out:' .. serial, p .. 'stream:' .. serial)
  count(todo, 'collected', 1)
  hooks.dropped(p, serial, job, todo)
  for _, index in ipairs({'inbox', 'final', 'index'}) do later(todo, 'ZREM', p .. index, serial) end
  if not job.ttl then read_lists_again(p, todo) end
  return blobs, owner or '', tonumber(job.ttl or 0)
end

-- Note an attempt that ended without ending the job, while the record still has the attempt's token: `job.noted` gets the fields that
-- change, and the writer of the job's next state writes them with it. Entries of `past` are `token,claimed,ended,how,delay` joined
-- by `;`, moments and delay in ms; `more` has the sums of attempts left out: count, time spent, delays.
local function note_past(p, serial, job, now, how, delay)
  local key, past, noted = p .. 'job:' .. serial, {}, {}
  local token, started, before, more = unpack(redis.call('HMGET', key, 'token', 'started', 'past', 'more'))
  for entry in string.gmatch(before or '', '[^;]+') do past[#past + 1] = entry end
  past[#past + 1] = table.concat({string.gsub(token, '[,;]', '_'), started, now, how, delay or 0}, ',')
  if #past > PAST_FIRST + PAST_LAST then
    local from, to, put_aside = string.match(table.remove(past, PAST_FIRST + 1), ',(%d+),(%d+),[a-z_]+,(%d+)$')
    local n, spent, delays = string.match(more or '0,0,0', '(%d+),(%d+),(%d+)')
    noted = {'more', table.concat({n + 1, spent + to - from, delays + put_aside}, ',')}
  end
  append(noted, {'past', table.concat(past, ';')})
  job.noted = noted
end

local function note(job, ...) append(job.noted, {...}) end

-- Keep the traceback of the attempt that holds this token, behind the attempt's number: an earlier attempt's traceback is stale.
local function note_traceback(job, token, text)
  if text == '' then return end
  job.noted = job.noted or {}
  note(job, 'traceback', string.match(token, '^%d+') .. '\n' .. text)
end

-- Write a state that is not final, and the noted attempt, in one command.
local function set_state(p, serial, job, state, todo, code, message)
  redis.call('HSET', p .. 'job:' .. serial, 'state', state, 'token', '', unpack(job.noted or NOTHING))
  hooks.waiting(p, serial, job, todo, code, message)
end

local ENDING = {'state', 'version', 'ttl', 'watch', 'code', 'token', 'final_token', 'cancel', 'deadline', 'attempts', 'crashes',
  'losses', 'in_a_row', 'lost_in', 'terms', 'band', 'created', 'blob', 'in', 'owner', 'trace', 'call', 'worker', 'epoch',
  'not_before', @fields.all}

-- The set that notes lost jobs now. The other one has those from before the reading of lists that is under way (see lists.lua).
local function lost_now(p) return p .. (redis.call('EXISTS', p .. 'swapped') == 1 and 'losing' or 'lost') end

-- A missing record was evicted or deleted by hand, and nothing is known of its job any more. Its places are cleared, so
-- that it holds up no other job, and it is counted once. One that had not ended is noted in `lost`: it counts as open until its
-- owner is found (see lists.lua).
local function forget_gone(p, serial, todo)
  if redis.call('ZREM', p .. 'index', serial) == 1 then -- else it was counted before
    count(todo, 'gone', 1)
    read_lists_again(p, todo)
    if redis.call('ZSCORE', p .. 'final', serial) then count(todo, 'gone:ended', 1) else later(todo, 'SADD', lost_now(p), serial) end
  end
  count_start(p, serial, todo)
  for _, index in ipairs({'delayed', 'final', 'inbox'}) do later(todo, 'ZREM', p .. index, serial) end
  drop(todo, p .. 'stream:' .. serial)
end

local function expire_job(p, serial, job, now, todo)
  end_job(p, serial, job, 'expired', now, todo, {code = 'expired', message = 'the deadline passed before the job finished'})
end

local function cancel_job(p, serial, job, now, todo, token)
  end_job(p, serial, job, 'cancelled', now, todo, {code = 'cancelled', message = 'cancelled by request', token = token})
end

-- A job that waits, in a line or for its start.
local function cancel_in_line(p, serial, job, now, todo)
  dequeue(p, serial, job)
  cancel_job(p, serial, job, now, todo)
  if job.state == 'delayed' then count_start(p, serial, todo) end
end

local function kill_job(p, serial, job, now, todo, code, message, token)
  end_job(p, serial, job, 'dead', now, todo, {code = code, message = message, token = token})
end

-- The fence: 'ok' if the caller holds the job, else the answer to the caller, and then nothing may be written.
local function fence(job, token)
  if not job.state then return 'stale' end
  if job.final_token and job.final_token ~= '' and job.final_token == token then return 'already' end
  if job.state ~= 'leased' then return 'stale' end -- guard:state
  if job.token ~= token then return 'stale' end -- guard:fence
  return 'ok'
end

-- A leased job whose run ended in a crash instead of a verdict runs alone next time, or is given up. `detail` may be nil or empty.
local function crash_job(p, serial, job, now, todo, token, detail)
  local crashes = job.crashes + 1
  note_past(p, serial, job, now, 'crashed')
  note(job, 'crashes', crashes)
  if crashes >= job.max_crashes or job.attempts - job.losses >= job.max_attempts then -- guard:crashes
    local last = detail and detail ~= '' and '; the last time: ' .. detail or ''
    kill_job(p, serial, job, now, todo, 'poison', 'the process running it died ' .. crashes .. ' times' .. last, token)
    return 'dead'
  end
  set_state(p, serial, job, 'queued', todo)
  enqueue_solo(p, serial, job)
  count(todo, 'redelivered:crashed', 1)
  return 'ok'
end
