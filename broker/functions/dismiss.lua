-- dismiss: take ended jobs off the failed inbox, because a person has dealt with them without a replay. Their records stay.
-- ARGS: per job: serial
-- REPLY: number of jobs that were in the inbox
-- LARGEST: DISMISS_MAX jobs
-- D35: docs/design/store.md

local DISMISS_MAX = 1000

local function dismiss(keys, args, todo)
  if #args > DISMISS_MAX then return redis.error_reply('ERR more than ' .. DISMISS_MAX .. ' jobs in one dismiss') end
  local p, dismissed = keys[1], 0
  for _, serial in ipairs(args) do
    local state, owner = unpack(redis.call('HMGET', p .. 'job:' .. serial, 'state', 'owner'))
    if state and redis.call('ZSCORE', p .. 'inbox', serial) then
      redis.call('HSET', p .. 'job:' .. serial, 'dismissed', '1')
      later(todo, 'ZREM', p .. 'inbox', serial)
      if owner then later(todo, 'ZREM', p .. 'inbox:' .. owner, serial) end
      dismissed = dismissed + 1
    end
  end
  flush(p, todo)
  return dismissed
end

register('dismiss', dismiss, {'allow-oom'})
