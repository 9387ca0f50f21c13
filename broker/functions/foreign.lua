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
