-- What operators did, the newest acts only: each is noted before it is done, and its outcome once it is known.
--
-- KEYS[1] of these functions is `pk:{keys}:`, because workers have no rights on what begins so.
--   audit     hash    number of an act -> when (ms), its outcome ('' = not known) and the act as JSON, one per line; LAST -> number of
--                     the newest one
-- D119: docs/design/gateway.md

local LAST = '#'

-- note_act: note what an operator is about to do, and forget the act that stood `most` places before it.
-- ARGS: the act, most acts
-- LARGEST: one act
-- REPLY: the number of the act
local function note_act(keys, args)
  local log = keys[1] .. 'audit'
  local number = redis.call('HINCRBY', log, LAST, 1)
  redis.call('HSET', log, number, string.format('%d\n\n%s', now_ms(), args[1]))
  redis.call('HDEL', log, number - tonumber(args[2]))
  return number
end

register('note_act', note_act, {'allow-oom'})

-- end_act: note how an act ended, and what was asked for.
-- ARGS: its number, the outcome, the act
-- LARGEST: one act
-- REPLY: 1 | 0 (forgotten meanwhile)
local function end_act(keys, args)
  local log = keys[1] .. 'audit'
  local noted = redis.call('HGET', log, args[1])
  if not noted then return 0 end
  redis.call('HSET', log, args[1], table.concat({string.match(noted, '^%d+'), args[2], args[3]}, '\n'))
  return 1
end

register('end_act', end_act, {'allow-oom'})

-- read_acts: the newest acts before a number.
-- ARGS: the number ('' = from the newest one), most acts
-- LARGEST: ACTS_MAX acts
-- REPLY: per act: number, text
local ACTS_MAX = 200

local function read_acts(keys, args)
  local log, acts = keys[1] .. 'audit', {}
  local last = tonumber(redis.call('HGET', log, LAST) or 0)
  local from = args[1] == '' and last or math.min(last, tonumber(args[1]) - 1)
  local numbers = {}
  for number = from, math.max(1, from - math.min(ACTS_MAX, tonumber(args[2])) + 1), -1 do numbers[#numbers + 1] = number end
  if #numbers == 0 then return acts end
  for i, text in ipairs(redis.call('HMGET', log, unpack(numbers))) do
    if text then append(acts, {numbers[i], text}) end
  end
  return acts
end

register('read_acts', read_acts, {'allow-oom', 'no-writes'})
