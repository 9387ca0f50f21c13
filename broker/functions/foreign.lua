-- reject_foreign: answer a stock Celery message that cannot become a job, and forget the message.
-- ARGS: message, celery id ('' = unreadable), reason
-- REPLY: ok
-- LARGEST: one message
local function reject_foreign(keys, args, todo)
  local p = keys[1]
  if not redis.call('ZSCORE', p .. 'foreign', args[1]) then return 'ok' end
  if args[2] ~= '' then celery_meta(todo, p, '', args[2], 'failed', '', nil, 'invalid_message', args[3]) end
  later(todo, 'ZREM', p .. 'foreign', args[1])
  count(todo, 'foreign_rejected', 1)
  flush(p, todo)
  return 'ok'
end

register('reject_foreign', reject_foreign, {'allow-oom'})
