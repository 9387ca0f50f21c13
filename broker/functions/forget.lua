-- forget: drop succeeded jobs before their time, because their submitter has taken the outputs. No caller reads them again, so
-- the tombstones stay for a minute only, for workers that ask whether the inputs may go. The caller deletes the outputs' blobs.
-- ARGS: per job: serial
-- REPLY: number of dropped jobs
-- LARGEST: FORGET_MAX jobs
-- D43: docs/design/runs.md

local FORGET_MAX = 1000

local function forget(keys, args, todo)
  if #args > FORGET_MAX then return redis.error_reply('ERR more than ' .. FORGET_MAX .. ' jobs in one forget') end
  local p, dropped = keys[1], 0
  for _, serial in ipairs(args) do
    if redis.call('HGET', p .. 'job:' .. serial, 'state') == 'succeeded' then -- guard:forget
      local refs, owner = drop_job(p, serial, todo)
      if refs then
        redis.call('SET', p .. 'tomb:' .. serial, owner, 'PX', TOMB_MIN_MS) -- guard:forgotten
        dropped = dropped + 1
      end
    end
  end
  flush(p, todo)
  return dropped
end

register('forget', forget, {'allow-oom'})
