-- What a record that is gone leaves in the lists of tags and of owners, which only the record named. Since one was found gone, these
-- lists are read once from the first to the last, a page per call of `reconcile`. Usually no record is gone. The list of
-- all jobs of an owner says whose the lost jobs were: they count as that owner's open jobs until then.
-- D61: docs/design/store.md
local PER_OWNER = {'inbox', 'index', 'tagged'}

local function names_of(p)
  local names = {'tagged'}
  for _, owner in ipairs(redis.call('SMEMBERS', p .. 'owners')) do
    for _, list in ipairs(PER_OWNER) do names[#names + 1] = list .. ':' .. owner end
  end
  table.sort(names)
  return names
end

-- Whether this job of a record that is gone had not ended, and no reading has met it yet.
local function was_open(p, serial)
  return redis.call('SREM', p .. 'losing', serial) == 1 or redis.call('SREM', p .. 'lost', serial) == 1
end

-- Stop counting the jobs of these entries that had not ended as open jobs of the owner.
local function close_lost(p, owner, entries)
  local lost = 0
  for _, serial in ipairs(entries) do
    if was_open(p, serial) then lost = lost + 1 end
  end
  add_owned(p .. 'open', {[owner] = -lost})
end

-- Drop the entries of records that are gone from one page of a list, behind the entry `from`. Returns the page's length, and its
-- last entry. An entry whose record is gone but not noted yet stays: it will be noted, and the lists read again.
local function clear_page(p, list, from, limit)
  local page, gone = redis.call('ZRANGEBYLEX', list, from == '' and '-' or '(' .. from, '+', 'LIMIT', 0, limit), {}
  for _, entry in ipairs(page) do
    local serial = string.match(entry, '[^,]*$')
    local is_gone = redis.call('EXISTS', p .. 'job:' .. serial) == 0
    if is_gone and not redis.call('ZSCORE', p .. 'index', serial) then gone[#gone + 1] = entry end
  end
  local kind, owner = string.match(list, '^.-}:(%a+):(.*)$')
  if kind == 'index' then close_lost(p, owner, gone) end
  send('ZREM', list, gone)
  if owner then forget_owner(p, owner) end
  return #page, page[#page]
end

-- The list at which the next page begins, and the entry before it; nil if no record was found gone since all were read.
local function next_page(key)
  local list, from, again = unpack(redis.call('HMGET', key, 'list', 'from', 'again'))
  if not list and not again then return end
  if not list then redis.call('HDEL', key, 'again') end
  return list or '', from or ''
end

-- Jobs lost before this reading that have no owner stay noted until its end; jobs lost meanwhile wait for the next. So the
-- two sets change places, which takes as long for a million jobs as for one.
local function begin_reading(p)
  if redis.call('DEL', p .. 'swapped') == 0 then redis.call('SET', p .. 'swapped', '1') end
end

-- All lists were read.
local function end_reading(p, key)
  redis.call('HDEL', key, 'list', 'from')
  local now = lost_now(p)
  redis.call('DEL', p .. (now == p .. 'lost' and 'losing' or 'lost'))
  if redis.call('EXISTS', now) == 0 then redis.call('DEL', p .. 'swapped') end
end

-- `limit`: entries and lists looked at.
function clear_lists(p, limit)
  local key = p .. 'strays'
  local first, from = next_page(key)
  if not first then return end
  if first == '' then begin_reading(p) end
  for _, name in ipairs(names_of(p)) do
    if name >= first then
      local n, last = clear_page(p, p .. name, name == first and from or '', limit)
      limit = limit - math.max(1, n)
      if limit <= 0 then return redis.call('HSET', key, 'list', name, 'from', last or '') end
    end
  end
  end_reading(p, key)
end
