-- count_split: count what gateways find of the copies that a split made. The ends of its jobs are counted where they end.
-- ARGS: name of the figures; per count: field, number to add
-- LARGEST: COUNTS_MAX counts
-- REPLY: 1
local COUNTS_MAX = 64

local function count_split(keys, args)
  local key = keys[1] .. 'split:' .. args[1]
  if #args > 1 + 2 * COUNTS_MAX then return redis.error_reply('ERR more than ' .. COUNTS_MAX .. ' counts in one count_split') end
  for i = 2, #args, 2 do redis.call('HINCRBY', key, args[i], args[i + 1]) end
  redis.call('PEXPIRE', key, SPLIT_MS)
  return 1
end

register('count_split', count_split, {})
