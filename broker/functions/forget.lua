-- forget: drop jobs that succeeded before their time, their outputs taken by who submitted them. Nobody will ask for them, so no
-- tombstone stays.
-- ARGS: serials
-- REPLY: how many were dropped; their blobs are the caller's to delete
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
