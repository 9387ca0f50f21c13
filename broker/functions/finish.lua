-- finish: settle leased jobs of one batch, each with its verdict. Fenced by token; a repeated finish is answered 'already'.
-- ARGS: worker, stamp of the batch; per job: serial, token, state (succeeded | failed | dead), media, output, blob, code, message,
--       traceback (mostly empty)
-- LARGEST: CLAIM_MAX jobs
-- REPLY: per job: ok | already | stale | cancelled
-- The suffixes of a stamp with the job's place in its batch, from 1. They are prepared because converting a number to text costs more
-- than everything else here.
local PLACES = {}
for place = 1, 256 do PLACES[place] = '|' .. place end

local SETTLED = {'state', 'token', 'final_token', 'cancel', 'ttl', 'watch', 'code', 'owner', 'in', @fields.all}

-- Load the jobs and store their large outputs, before any record says that its job has succeeded. A job named twice is settled once.
local function load_settled(p, args, todo)
  local jobs, seen = {}, {}
  for i = @finish.first, #args, @finish.stride do
    local serial, token, output = args[i], args[i + @finish.token], args[i + @finish.output]
    local job = read_fields(p .. 'job:' .. serial, SETTLED)
    job.answer = seen[serial] and 'already' or fence(job, token)
    seen[serial] = true
    local large = args[i + @finish.state] == 'succeeded' and args[i + @finish.blob] == '' and #output > SMALL
    if large and job.answer == 'ok' and job.cancel ~= '1' then store(todo, p .. 'out:' .. serial, output) end
    jobs[#jobs + 1] = job
  end
  send_values(todo)
  return jobs
end

local function finish(keys, args, todo)
  if #args > @finish.first - 1 + CLAIM_MAX * @finish.stride then return too_many('finish') end
  local p, now, stamp, place = keys[1], now_ms(), args[@finish.stamp], 0
  local held, reply, jobs = p .. 'held:' .. args[@finish.worker], {}, load_settled(keys[1], args, todo)
  for i = @finish.first, #args, @finish.stride do
    local serial, token, state = args[i], args[i + @finish.token], args[i + @finish.state]
    place = place + 1
    local job = jobs[place]
    local answer = job.answer
    if answer == 'ok' then
      if job.cancel == '1' then -- guard:cancel
        cancel_job(p, serial, job, now, todo, token)
        answer = 'cancelled'
      else
        note_traceback(job, token, args[i + @finish.traceback])
        end_job(p, serial, job, state, now, todo, {media = args[i + @finish.media], output = args[i + @finish.output], blob = args[i + @finish.blob],
          code = args[i + @finish.code], message = args[i + @finish.message], stamp = stamp .. (PLACES[place] or '|' .. place),
          token = token})
      end
      later(todo, 'HDEL', held, serial)
    elseif answer == 'stale' then
      count(todo, 'stale', 1)
    end
    reply[#reply + 1] = answer
  end
  flush(p, todo)
  return reply
end

register('finish', finish, {'allow-oom'})
