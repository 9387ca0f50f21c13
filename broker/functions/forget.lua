-- forget: drop succeeded jobs before their time, because their submitter has taken the outputs. Nobody will ask for them again, so
-- no tombstone stays. The caller deletes the blobs.
-- ARGS: per job: serial
-- REPLY: number of dropped jobs
-- D43: docs/design/runs.md

local function forget(keys, args)
  local p, todo, dropped = keys[1], {}, 0
  for _, serial in ipairs(args) do
    if redis.call('HGET', p .. 'job:' .. serial, 'state') == 'succeeded' then -- guard:forget
      drop_job(p, serial)
      dropped = dropped + 1
    end
  end
  count(todo, 'collected', dropped)
  flush(p, todo)
  return dropped
end

register('forget', forget, {'allow-oom'})
