-- roll_out: replace what an operator changed about a model, unless somebody else was quicker.
-- KEYS: the hash of all rollouts. ARGS: model, the text as it was read ('' = none), the new text ('' = take it back)
-- REPLY: 1 done, 0 changed meanwhile
local function roll_out(keys, args)
  if (redis.call('HGET', keys[1], args[1]) or '') ~= args[2] then return 0 end
  if args[3] == '' then redis.call('HDEL', keys[1], args[1]) else redis.call('HSET', keys[1], args[1], args[3]) end
  return 1
end

register('roll_out', roll_out, {'allow-oom'})
