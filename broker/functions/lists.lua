-- What a record that is gone leaves in the lists of tags and of owners, which only the record named. Since one was found gone, these
-- lists are read once from the first to the last, a page per call of `reconcile`; mostly none is, and nothing is read.
-- D61: docs/design/store.md
local PER_OWNER = {'inbox', 'index', 'tagged'}

local function names_of(p)
  local names = {'tagged'}
  for _, owner in ipairs(redis.call('HKEYS', p .. 'open')) do
    if owner ~= '' then
      for _, list in ipairs(PER_OWNER) do names[#names + 1] = list .. ':' .. owner end
    end
  end
  table.sort(names)
  return names
end

-- Drop the entries of records that are gone from one page of a list, behind the entry `from`. Returns the page's length, and its
-- last entry.
local function clear_page(p, list, from, limit)
  local page, gone = redis.call('ZRANGEBYLEX', list, from == '' and '-' or '(' .. from, '+', 'LIMIT', 0, limit), {}
  for _, entry in ipairs(page) do
    local serial = string.match(entry, '[^,]*$')
    if redis.call('EXISTS', p .. 'job:' .. serial) == 0 then gone[#gone + 1] = entry end
  end
  send('ZREM', list, gone)
  return #page, page[#page]
end

-- The list at which the next page begins, and the entry before it; nil if no record was found gone since all were read.
local function next_page(key)
  local list, from, again = unpack(redis.call('HMGET', key, 'list', 'from', 'again'))
  if not list and not again then return end
  if not list then redis.call('HDEL', key, 'again') end
  return list or '', from or ''
end

-- `limit`: entries and lists looked at.
function clear_lists(p, limit)
  local key = p .. 'strays'
  local first, from = next_page(key)
  if not first then return end
  for _, name in ipairs(names_of(p)) do
    if name >= first then
      local n, last = clear_page(p, p .. name, name == first and from or '', limit)
      limit = limit - math.max(1, n)
      if limit <= 0 then return redis.call('HSET', key, 'list', name, 'from', last or '') end
    end
  end
  redis.call('HDEL', key, 'list', 'from')
end
