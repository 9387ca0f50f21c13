-- Writes that are gathered and sent together, at the end of a call or after an error.

local function append(reply, list)
  for _, value in ipairs(list or {}) do reply[#reply + 1] = value end
end

-- Writes that nothing later in the same call reads are gathered in `todo` and sent together by `flush`: one Redis command per key
-- for a whole batch. `todo.tally` holds counters, `todo.counted` those of other hashes by key, `todo.pushes` messages by channel,
-- `todo.changes` the changes to report to the caller, `todo.store`, `todo.sets` and `todo.drop` values to set and keys to delete,
-- `todo.ended` the entries of `final`; all other entries are commands, by name and key and in the order in which they came.
-- D20: docs/design/store.md
local function later(todo, command, key, ...)
  local id = command .. key
  local list = todo[id]
  if not list then
    list = {command = command, key = key, id = id}
    todo[id], todo[#todo + 1] = list, list
  end
  for i = 1, select('#', ...) do list[#list + 1] = (select(i, ...)) end
end

local function store(todo, key, value)
  todo.store = todo.store or {}
  local n = #todo.store
  todo.store[n + 1], todo.store[n + 2] = key, value
end

-- A value with a time to live, in ms. Of two for one key the later one stays.
local function set_later(todo, key, value, ttl)
  todo.sets = todo.sets or {}
  todo.sets[key] = {value, ttl}
end

local function drop(todo, key)
  todo.drop = todo.drop or {}
  todo.drop[#todo.drop + 1] = key
end

-- Send one command for a whole list. Lua passes at most about 8,000 values to one call, and a call that failed there would be half
-- done, so a long list goes in parts; their size is even, which keeps pairs together.
local PART = 4000
local function send(command, key, values)
  for from = 1, #values, PART do
    local to = math.min(from + PART - 1, #values)
    if key then redis.call(command, key, unpack(values, from, to)) else redis.call(command, unpack(values, from, to)) end
  end
end

local function count(todo, what, n)
  todo.tally = todo.tally or {}
  todo.tally[what] = (todo.tally[what] or 0) + n
end

-- Count in a hash of its own, which is gone `keep` ms after its last count.
local function count_in(todo, key, what, keep)
  todo.counted = todo.counted or {}
  local hash = todo.counted[key] or {keep = keep, counts = {}}
  hash.counts[what] = (hash.counts[what] or 0) + 1
  todo.counted[key] = hash
end

local function count_open(todo, owner, n)
  if not owner or owner == '' then return end
  todo.open = todo.open or {}
  todo.open[owner] = (todo.open[owner] or 0) + n
end

local function count_planned(todo, owner, n)
  if not owner or owner == '' then return end
  todo.planned = todo.planned or {}
  todo.planned[owner] = (todo.planned[owner] or 0) + n
end

-- A job waits for its start.
local function plan_start(p, serial, owner, todo)
  if owner == '' then return end
  later(todo, 'HSET', p .. 'starts', serial, owner)
  count_planned(todo, owner, 1)
end

-- A delayed job leaves its delay. A job that waited for its start, and not for a retry, has an entry in `starts`, which says
-- its owner even where its record is gone.
local function count_start(p, serial, todo)
  local owner = redis.call('HGET', p .. 'starts', serial)
  if owner and redis.call('HDEL', p .. 'starts', serial) == 1 then count_planned(todo, owner, -1) end
end

-- Report a change that is not a settling by the job's holder: the caller logs it.
local function tell(todo, what, serial, state, job)
  todo.changes = todo.changes or {}
  local n = #todo.changes
  todo.changes[n + @change.event], todo.changes[n + @change.serial], todo.changes[n + @change.state] = what, serial, state
  todo.changes[n + @change.version], todo.changes[n + @change.token] = job.version, job.token or ''
  todo.changes[n + @change.trace] = job.trace or ''
end

-- The entries of a job in `tagged`. A comma ends the tag, since no tag has one.
local function tag_entries(tags, serial)
  local entries = {}
  for tag in string.gmatch(tags or '', '[^,]+') do entries[#entries + 1] = tag .. ',' .. serial end
  return entries
end

-- The lists that have the tags of a job: that of all jobs, and that of its owner.
local function tag_lists(p, owner)
  if not owner or owner == '' then return {p .. 'tagged'} end
  return {p .. 'tagged', p .. 'tagged:' .. owner}
end

local function add_up(key, counts)
  for what, n in pairs(counts or {}) do
    if n ~= 0 then redis.call('HINCRBY', key, what, n) end
    counts[what] = nil
  end
end

-- Count what owners have. An owner whose count is 0 leaves the hash, which would else grow with every owner that ever came.
local function add_owned(key, counts)
  for owner, n in pairs(counts or NOTHING) do
    if n ~= 0 and redis.call('HINCRBY', key, owner, n) <= 0 then redis.call('HDEL', key, owner) end
    counts[owner] = nil
  end
end

-- An owner without any list is forgotten.
local function forget_owner(p, owner)
  local lists = redis.call('EXISTS', p .. 'index:' .. owner, p .. 'inbox:' .. owner, p .. 'tagged:' .. owner)
  if lists == 0 then redis.call('SREM', p .. 'owners', owner) end
end

local function send_values(todo)
  if todo.store then send('MSET', nil, todo.store) end
  todo.store = nil
  for key, timed in pairs(todo.sets or NOTHING) do
    redis.call('SET', key, timed[1], 'PX', timed[2])
    todo.sets[key] = nil
  end
end

-- An ended job's place in `final` comes after its other places: a job that has it has them all.
function flush(p, todo)
  send_values(todo)
  while todo[1] do
    send(todo[1].command, todo[1].key, todo[1])
    todo[table.remove(todo, 1).id] = nil
  end
  if todo.ended then send('ZADD', p .. 'final', todo.ended) end
  todo.ended = nil
  if todo.drop then send('DEL', nil, todo.drop) end
  todo.drop = nil
  add_up(p .. 'counters', todo.tally)
  add_owned(p .. 'open', todo.open)
  add_owned(p .. 'planned', todo.planned)
  for key, hash in pairs(todo.counted or NOTHING) do
    add_up(key, hash.counts)
    redis.call('PEXPIRE', key, hash.keep)
  end
  for channel, list in pairs(todo.pushes or {}) do redis.call('PUBLISH', channel, table.concat(list)) end
  todo.tally, todo.open, todo.planned, todo.counted, todo.pushes, todo.changes = nil, nil, nil, nil, nil, nil
end

-- After an error: a job whose record was not written leaves the index again, and the rest of what was decided is sent.
function complete(p, todo)
  local unborn = {}
  for serial in pairs(todo.unborn or NOTHING) do unborn[#unborn + 1] = serial end
  send('ZREM', p .. 'index', unborn)
  flush(p, todo)
end
