-- swap: replace one entry of a hash, unless another process changed it first.
-- KEYS: the hash of all rollouts, of all drained workers, of all models or of all requests for profiles
-- ARGS: entry, the text as it was read ('' = none), the new text ('' = remove the entry)
-- REPLY: 1 (replaced) | 0 (changed meanwhile)
-- LARGEST: one entry
-- A change of a rollout or of a drain is published on the channel of rollouts; a worker whose slots miss it follows at its next
-- beat.
-- D23: docs/design/workers-and-devices.md
local ROLLOUTS, DRAINS = REGISTRY .. 'rollouts', REGISTRY .. 'drains'

local function swap(keys, args)
  if (redis.call('HGET', keys[1], args[1]) or '') ~= args[2] then return 0 end
  if args[3] == '' then redis.call('HDEL', keys[1], args[1]) else redis.call('HSET', keys[1], args[1], args[3]) end
  new_edition()
  if keys[1] == ROLLOUTS or keys[1] == DRAINS then redis.call('PUBLISH', ROLLOUTS, 'r') end
  return 1
end

register('swap', swap, {'allow-oom'})
