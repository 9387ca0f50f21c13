-- reject_foreign: answer a stock Celery message that cannot become a job, and forget the message.
-- ARGS: message, celery id ('' = unreadable), reason
-- REPLY: ok
local function reject_foreign(keys, args)
  local p, todo = keys[1], {}
  if redis.call('HDEL', p .. 'foreign', args[1]) == 1 then
    count(todo, 'foreign_rejected', 1)
    if args[2] ~= '' then celery_meta(p, '', args[2], 'failed', '', nil, 'invalid_message', args[3]) end
    flush(p, todo)
  end
  return 'ok'
end

register('reject_foreign', reject_foreign, {'allow-oom'})

-- absent: find the lease holders of the model whose own channel has no subscriber, because their process has ended.
-- ARGS: none
-- REPLY: per worker: name
local function absent(keys)
  local gone = {}
  for _, worker in ipairs(redis.call('ZRANGE', keys[1] .. 'leases', 0, -1)) do
    if tonumber(redis.call('PUBSUB', 'NUMSUB', 'ps:worker:' .. worker)[2]) == 0 then gone[#gone + 1] = worker end
  end
  return gone
end

register('absent', absent, {'no-writes'})
