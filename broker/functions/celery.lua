-- What a stock Celery client sees of a job: the entry of Celery's result backend, `celery-task-meta-<task id>`, and its channel.
-- The keys here are outside the model's slot of a cluster, which stock Celery cannot use either.
-- D81: docs/design/store.md
local META_TTL_MS = 86400000
local META = 'celery-task-meta-'
local DOOR = 'penstock' -- the queue of Celery's clients who name no queue
local ANSWERS = 'ps:{*}:answers' -- zset: job id -> when a worker is to answer its task; for results that a worker has to write

-- The class that an error has at the client, where it has one of its own: those of core/errors.py. A code that is not listed is
-- that of a model, hence a HandlerError.
local CLASSES = {timeout = 'HandlerTimeout', handler_contract = 'HandlerContractError', load_failed = 'HandlerLoadError',
  invalid_input = 'InvalidInput', too_large = 'TooLarge', unsupported_media_type = 'UnsupportedMedia', bad_request = 'BadRequest',
  invalid_message = 'BadRequest', not_found = 'NotFound', input_url_failed = 'InputUrlFailed', internal = 'InternalError',
  worker_lost = 'PenstockError'}

local function error_meta(kind, home, message)
  return cjson.encode({exc_type = kind, exc_message = {message}, exc_module = home})
end

-- What a record's field `celery` says: the job's own task, empty if nobody wants its result; `,`; those that fail with it, joined
-- by `,`; a line feed; what is to be sent when the job has ended, for a worker to read. Mostly it is the first of these alone.
local function tasks_in(celery) return string.match(celery, '^([^,\n]*),?([^\n]*)\n?(.*)$') end

local function celery_meta(todo, task, status, result)
  if task == '' then return end
  local meta = '{"status":"' .. status .. '","result":' .. result .. ',"traceback":null,"children":[],"task_id":'
    .. cjson.encode(task) .. '}'
  set_later(todo, META .. task, meta, META_TTL_MS)
  todo.pushes = todo.pushes or {}
  todo.pushes[META .. task] = {meta}
end

local function celery_failed(todo, task, code, message)
  celery_meta(todo, task, 'FAILURE', error_meta(CLASSES[code] or 'HandlerError', 'penstock.errors', code .. ': ' .. message))
end

-- A job that was leased, or reported how far it is.
local function celery_running(todo, p, task, serial)
  local worker, epoch, progress = unpack(redis.call('HMGET', p .. 'job:' .. serial, 'worker', 'epoch', 'progress'))
  local job = id_of(p, serial)
  local at, fraction, note = string.match(progress or '', '^(%d+),%d+,([^,]*),(.*)$')
  if not at or at ~= epoch then return celery_meta(todo, task, 'STARTED', cjson.encode({hostname = worker or '', job = job})) end
  celery_meta(todo, task, 'PROGRESS', cjson.encode({current = tonumber(fraction), total = 1, note = note, job = job}))
end

-- A job that ran, and waits to run again.
local function celery_waits(todo, celery, code, message)
  local why = code and code .. ': ' .. (message or '') or 'it waits to run again'
  celery_meta(todo, (tasks_in(celery)), 'RETRY', error_meta('Retry', 'celery.exceptions', why))
end

-- Have a worker answer the task: one that waits for messages wakes up.
local function answer_soon(todo, p, serial, now)
  later(todo, 'ZADD', ANSWERS, now, id_of(p, serial))
  if redis.call('LLEN', DOOR) == 0 then redis.call('LPUSH', DOOR, TICKET) end
end

-- The answer to a task whose job succeeded: at once, unless messages follow, or the output is no JSON, or too large to be at hand:
-- then a worker reads it, answers and sends.
local function celery_succeeded(todo, p, serial, task, follows, now, media, output)
  local is_json = media == 'application/json' and output and output ~= ''
  if follows or not is_json then return answer_soon(todo, p, serial, now) end
  celery_meta(todo, task, 'SUCCESS', output)
end

-- The answer to a task whose job has ended. The tasks that were to follow in its chain end as it did, or a client would wait for them.
local function celery_ended(todo, p, serial, celery, state, now, media, output, code, message)
  local task, chain, rest = tasks_in(celery)
  if state == 'succeeded' then return celery_succeeded(todo, p, serial, task, rest ~= '', now, media, output) end
  local revoked = state == 'cancelled' or state == 'expired'
  for one in string.gmatch(task .. ',' .. chain, '[^,]+') do
    if revoked then celery_meta(todo, one, 'REVOKED', error_meta('TaskRevokedError', 'celery.exceptions', code .. ': ' .. message))
    else celery_failed(todo, one, code, message) end
  end
  if rest ~= '' and not revoked then answer_soon(todo, p, serial, now) end
end
