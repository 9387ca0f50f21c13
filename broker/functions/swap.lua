-- swap: replace one entry of a hash, unless another process changed it first.
-- KEYS: the hash of all rollouts or of all models
-- ARGS: entry, the text as it was read ('' = none), the new text ('' = remove the entry)
-- REPLY: 1 (replaced) | 0 (changed meanwhile)
-- LARGEST: one entry
-- D23: docs/design/workers-and-devices.md
local function swap(keys, args)
  if (redis.call('HGET', keys[1], args[1]) or '') ~= args[2] then return 0 end
  if args[3] == '' then redis.call('HDEL', keys[1], args[1]) else redis.call('HSET', keys[1], args[1], args[3]) end
  new_edition()
  return 1
end

register('swap', swap, {'allow-oom'})
