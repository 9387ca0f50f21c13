-- finish: settle leased jobs of one batch, each with its verdict. Fenced by token; a repeated finish is answered 'already'.
-- ARGS: worker, stamp of the batch; per job: serial, token, state (succeeded | failed | dead), media, output, blob, code, message
-- REPLY: per job: ok | already | stale | cancelled
local FINISH_STRIDE = 8
-- The suffixes of a stamp with the job's place in its batch, from 1. They are prepared because converting a number to text costs more
-- than everything else here.
local PLACES = {}
for place = 1, 256 do PLACES[place] = '|' .. place end

local function finish(keys, args)
  local p, now, todo = keys[1], now_ms(), {}
  local stamp, place = args[2], 0
  local held, reply, gone = p .. 'held:' .. args[1], {}, {}
  for i = 3, #args, FINISH_STRIDE do
    local serial, token, state = args[i], args[i + 1], args[i + 2]
    place = place + 1
    local job = load_job(p, serial, {'state', 'token', 'final_token', 'cancel', 'ttl', 'watch', 'celery', 'code', 'owner', 'in'})
    local answer = fence(job, token)
    if answer == 'ok' then
      gone[#gone + 1] = serial
      if job.cancel == '1' then -- guard:cancel
        cancel_job(p, serial, job, now, todo, token)
        answer = 'cancelled'
      else
        end_job(p, serial, job, state, now, todo, {media = args[i + 3], output = args[i + 4], blob = args[i + 5],
          code = args[i + 6], message = args[i + 7], stamp = stamp .. (PLACES[place] or '|' .. place),
          token = token})
        count(todo, 'ended:' .. state, 1)
      end
    elseif answer == 'stale' then
      count(todo, 'stale', 1)
    end
    reply[#reply + 1] = answer
  end
  send('HDEL', held, gone)
  flush(p, todo)
  return reply
end

register('finish', finish, {'allow-oom'})
