-- How many jobs of each owner's calls ended, by the method that made them. It is the only report on the ends of notifications.
-- field: rpc
--
-- The word of a submit: the method.
-- Field of the record: rpc, the same.
-- Beside the record:
--   rpc   hash  method, state and owner, separated by spaces -> how many jobs ended so; gone KEPT_MS after the last of them

local KEPT_MS = 30 * 86400000

-- hook: drafted
function own.drafted(p, word, owner, call, record) append(record, {'rpc', word}) end

-- hook: ended
-- The end itself is one command. Counts are gathered, and follow in one command for all jobs of a batch.
function own.ended(p, serial, job, state, now, todo)
  count_in(todo, p .. 'rpc', job.rpc .. ' ' .. state .. ' ' .. (job.owner or ''), KEPT_MS)
end

-- rpc_tally: what was counted of one owner.
-- ARGS: owner
-- REPLY: method, state, count; and so on
-- LARGEST: the counters of all owners of one queue
local function rpc_tally(keys, args)
  local all, reply = redis.call('HGETALL', keys[1] .. 'rpc'), {}
  for i = 1, #all, 2 do
    local method, state, owner = string.match(all[i], '^(%S+) (%S+) (.*)$')
    if owner == args[1] then append(reply, {method, state, all[i + 1]}) end
  end
  return reply
end

register('rpc_tally', rpc_tally, {'no-writes', 'allow-stale'})
