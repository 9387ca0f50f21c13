-- What a split's figures hold: how the jobs that it sent to each version ended, and how the copies for its shadow compare.
--   split:<name>   hash   field -> count; gone KEEP_MS after the last count
-- D102: docs/design/workers-and-devices.md
-- mark: #
--
-- The word of a submit, and what stands behind the mark: the name of the figures.
local KEEP_MS = 7 * 86400000

-- hook: drafted
function own.drafted(p, word) return word end

-- hook: watched
-- Count the end of a job by its state and, on success, by how long its caller waited: in buckets, sixteen for each doubling of the
-- milliseconds, as figures.py reads them.
function own.watched(p, mark, figures, serial, final, todo)
  if not final then return end
  local version, state, created, start, finished =
    unpack(redis.call('HMGET', p .. 'job:' .. serial, 'version', 'state', 'created', 'not_before', 'finished'))
  if state == 'cancelled' then return end -- its caller no longer wanted it
  local key = p .. 'split:' .. figures
  count_in(todo, key, version .. ',' .. state, KEEP_MS)
  if state ~= 'succeeded' then return end
  local took = math.max(1, finished - math.max(created, start or 0))
  count_in(todo, key, version .. ',~' .. math.floor(math.log(took) / math.log(2) * 16), KEEP_MS)
end

-- count_split: count what gateways find of the copies that a split made. The ends of its jobs are counted where they end.
-- ARGS: name of the figures; per count: field, number to add
-- LARGEST: COUNTS_MAX counts
-- REPLY: 1
local COUNTS_MAX = 64

local function count_split(keys, args)
  local key = keys[1] .. 'split:' .. args[1]
  if #args > 1 + 2 * COUNTS_MAX then return redis.error_reply('ERR more than ' .. COUNTS_MAX .. ' counts in one count_split') end
  for i = 2, #args, 2 do redis.call('HINCRBY', key, args[i], args[i + 1]) end
  redis.call('PEXPIRE', key, KEEP_MS)
  return 1
end

register('count_split', count_split, {})
