-- What a stock Celery client sees of a job: the entry of Celery's result backend, `celery-task-meta-<task id>`, and its channel.
-- The keys here are outside the model's slot of a cluster, which stock Celery cannot use either.
-- D81: docs/design/store.md
-- field: celery
-- mark: *
--
-- The word of a submit: the length of what follows, a colon, what the record's field `celery` is to say (see `tasks_in`), and the
-- message that the job replaces. Behind the mark stands the job's own task, unless its result is ignored.
own.META_TTL_MS = 86400000
own.META = 'celery-task-meta-'
own.ANSWERS = 'ps:{*}:answers' -- zset: job id -> when a worker is to answer its task; for results that a worker has to write
local DOOR = 'penstock' -- the queue of Celery's clients who name no queue

-- The class that an error has at the client, where it has one of its own: those of core/errors.py. A code that is not listed is
-- that of a model, hence a HandlerError.
local CLASSES = {timeout = 'HandlerTimeout', handler_contract = 'HandlerContractError', load_failed = 'HandlerLoadError',
  invalid_input = 'InvalidInput', too_large = 'TooLarge', unsupported_media_type = 'UnsupportedMedia', bad_request = 'BadRequest',
  invalid_message = 'BadRequest', not_found = 'NotFound', input_url_failed = 'InputUrlFailed', internal = 'InternalError',
  worker_lost = 'PenstockError'}

local function error_meta(kind, home, message)
  return cjson.encode({exc_type = kind, exc_message = {message}, exc_module = home})
end

-- What a record's field `celery` holds: the job's own task, empty if its result is ignored; `,`; the tasks that fail with it,
-- joined by `,`; a line feed; what a worker must send when the job has ended. Usually it holds only the first of these.
local function tasks_in(celery) return string.match(celery, '^([^,\n]*),?([^\n]*)\n?(.*)$') end

local function tell_task(todo, task, status, result)
  if task == '' then return end
  local meta = '{"status":"' .. status .. '","result":' .. result .. ',"traceback":null,"children":[],"task_id":'
    .. cjson.encode(task) .. '}'
  set_later(todo, own.META .. task, meta, own.META_TTL_MS)
  todo.pushes = todo.pushes or {}
  todo.pushes[own.META .. task] = {meta}
end

local function fail_task(todo, task, code, message)
  tell_task(todo, task, 'FAILURE', error_meta(CLASSES[code] or 'HandlerError', 'penstock.errors', code .. ': ' .. message))
end

local function split_word(word)
  local length, at = string.match(word, '^(%d+):()')
  return string.sub(word, at, at + length - 1), string.sub(word, at + length)
end

-- hook: drafted
function own.drafted(p, word, owner, call, record)
  local tasks = split_word(word)
  if tasks == '' then return end
  append(record, {'celery', tasks})
  local task = tasks_in(tasks)
  return task ~= '' and task
end

-- hook: submitted
-- A message that has become a job, now or before, is no longer handed out.
function own.submitted(p, word, serial, owner, status, todo)
  local _, message = split_word(word)
  local is_known = status == 'created' or status == 'existing' or status == 'key_reused'
  if message ~= '' and is_known then later(todo, 'ZREM', p .. 'foreign', message) end
end

-- hook: watched
function own.watched(p, mark, task, serial, final, todo)
  if final then return end -- `ended` answers
  local worker, epoch, progress = unpack(redis.call('HMGET', p .. 'job:' .. serial, 'worker', 'epoch', 'progress'))
  local job = id_of(p, serial)
  local at, fraction, note = string.match(progress or '', '^(%d+),%d+,([^,]*),(.*)$')
  if not at or at ~= epoch then return tell_task(todo, task, 'STARTED', cjson.encode({hostname = worker or '', job = job})) end
  tell_task(todo, task, 'PROGRESS', cjson.encode({current = tonumber(fraction), total = 1, note = note, job = job}))
end

-- hook: waiting
-- A job that ran, and waits to run again.
function own.waiting(p, serial, job, todo, code, message)
  if not job.epoch then return end
  local why = code and code .. ': ' .. (message or '') or 'it waits to run again'
  tell_task(todo, (tasks_in(job.celery)), 'RETRY', error_meta('Retry', 'celery.exceptions', why))
end

-- Have a worker answer the task: one that waits for messages wakes up.
local function answer_soon(todo, p, serial, now)
  later(todo, 'ZADD', own.ANSWERS, now, id_of(p, serial))
  if redis.call('LLEN', DOOR) == 0 then redis.call('LPUSH', DOOR, TICKET) end
end

-- The answer to a task whose job succeeded. It is written at once, unless messages follow, or the output is not JSON or is too
-- large to be stored inline: then a worker reads it, answers and sends.
local function succeed_task(todo, p, serial, task, follows, now, media, output)
  local is_json = media == 'application/json' and output and output ~= ''
  if follows or not is_json then return answer_soon(todo, p, serial, now) end
  tell_task(todo, task, 'SUCCESS', output)
end

-- hook: ended
-- The answer to a task whose job has ended. The tasks that were to follow in its chain end as it did, or a client would wait for them.
function own.ended(p, serial, job, state, now, todo, last)
  local task, chain, rest = tasks_in(job.celery)
  if state == 'succeeded' then return succeed_task(todo, p, serial, task, rest ~= '', now, last.media or '', last.output) end
  local code, message = last.code or '', last.message or ''
  local revoked = state == 'cancelled' or state == 'expired'
  for one in string.gmatch(task .. ',' .. chain, '[^,]+') do
    if revoked then tell_task(todo, one, 'REVOKED', error_meta('TaskRevokedError', 'celery.exceptions', code .. ': ' .. message))
    else fail_task(todo, one, code, message) end
  end
  if rest ~= '' and not revoked then answer_soon(todo, p, serial, now) end
end
