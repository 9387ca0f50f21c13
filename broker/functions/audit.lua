-- What operators did, the newest acts only: each is noted before it is done, and its outcome once it is known.
--
-- KEYS[1] of these functions is `pk:{keys}:`, because workers have no rights on what begins so. Acts are kept in two groups: `manage`,
-- those of keys with this role, which are noted without an owner, and `owners`, all others.
--   audit                   hash  number of an act -> when (ms), its outcome ('' = not known) and the act as JSON, one per line;
--                                 LAST -> number of the newest one
--   acts:<group>            zset  number -> number; acts:<group>:<owner>  the same of one owner
--   shares:<group>          zset  owner -> how many of its acts are kept
-- D119: docs/design/gateway.md

local LAST = '#'

local function group_of(owner) return owner == '' and 'manage' or 'owners' end

local function count_share(p, owner)
  local shares, count = p .. 'shares:' .. group_of(owner), redis.call('ZCARD', p .. 'acts:' .. group_of(owner) .. ':' .. owner)
  if count > 0 then redis.call('ZADD', shares, count, owner) else redis.call('ZREM', shares, owner) end
end

local function list_act(p, number, owner)
  local group = p .. 'acts:' .. group_of(owner)
  for _, list in ipairs({group, group .. ':' .. owner}) do redis.call('ZADD', list, number, number) end
  count_share(p, owner)
end

local function forget_act(p, number, owner)
  local group = p .. 'acts:' .. group_of(owner)
  redis.call('HDEL', p .. 'audit', number)
  for _, list in ipairs({group, group .. ':' .. owner}) do redis.call('ZREM', list, number) end
  count_share(p, owner)
end

-- A full group forgets the first act of the owner that has the most: nobody pushes out acts of an owner with fewer.
local function make_room(p, group, most)
  if redis.call('ZCARD', p .. 'acts:' .. group) <= most then return end
  local owner = redis.call('ZRANGE', p .. 'shares:' .. group, 0, 0, 'REV')[1] -- guard:share_of_acts
  forget_act(p, redis.call('ZRANGE', p .. 'acts:' .. group .. ':' .. owner, 0, 0)[1], owner)
end

-- A log from before there were groups becomes that of `manage`.
local function list_old(p)
  if redis.call('EXISTS', p .. 'acts:manage', p .. 'acts:owners') > 0 then return end
  for _, number in ipairs(redis.call('HKEYS', p .. 'audit')) do
    if number ~= LAST then list_act(p, number, '') end
  end
end

-- note_act: note what an operator is about to do.
-- ARGS: the act, its owner, most acts of a group
-- LARGEST: one act, and once the acts of an older log
-- REPLY: the number of the act
local function note_act(keys, args)
  local p = keys[1]
  list_old(p)
  local number = redis.call('HINCRBY', p .. 'audit', LAST, 1)
  redis.call('HSET', p .. 'audit', number, string.format('%d\n\n%s', now_ms(), args[1]))
  list_act(p, number, args[2])
  make_room(p, group_of(args[2]), tonumber(args[3]))
  return number
end

register('note_act', note_act, {'allow-oom'})

-- end_act: note how an act ended, and what was asked for. An act that changed nothing is forgotten.
-- ARGS: its number, its owner, the outcome ('' = nothing was changed), the act
-- LARGEST: one act
-- REPLY: 1 | 0 (forgotten meanwhile)
local function end_act(keys, args)
  local log = keys[1] .. 'audit'
  local noted = redis.call('HGET', log, args[1])
  if not noted then return 0 end
  if args[3] == '' then forget_act(keys[1], args[1], args[2])
  else redis.call('HSET', log, args[1], table.concat({string.match(noted, '^%d+'), args[3], args[4]}, '\n'))
  end
  return 1
end

register('end_act', end_act, {'allow-oom'})

-- read_acts: the newest acts before a number.
-- ARGS: the number ('' = from the newest one), most acts
-- LARGEST: ACTS_MAX acts
-- REPLY: per act: number, text
local ACTS_MAX = 200

local function read_acts(keys, args)
  local from, most = args[1] == '' and '+inf' or '(' .. args[1], math.min(ACTS_MAX, tonumber(args[2]))
  local numbers, acts = {}, {}
  for _, group in ipairs({'manage', 'owners'}) do
    append(numbers, redis.call('ZRANGE', keys[1] .. 'acts:' .. group, from, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, most))
  end
  if #numbers == 0 then return acts end
  table.sort(numbers, function(one, other) return tonumber(one) > tonumber(other) end)
  numbers = {unpack(numbers, 1, most)}
  for i, text in ipairs(redis.call('HMGET', keys[1] .. 'audit', unpack(numbers))) do
    if text then append(acts, {tonumber(numbers[i]), text}) end
  end
  return acts
end

register('read_acts', read_acts, {'allow-oom', 'no-writes'})
