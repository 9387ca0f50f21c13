-- Which jobs go next. Without owners: by band and deadline. With owners: within a band the owners take turns, one job each,
-- and the jobs of one owner go by deadline; so a flood of jobs of one owner delays each job of another owner by one job, not by the
-- length of the flood.
--
-- An owner gets a turn when a job of that owner is queued, and the turn moves to the end when a job is claimed. The turn stays when
-- the owner's line becomes empty, and is dropped when a claim meets it: an owner that comes and goes neither gains nor loses a place.
-- D31: docs/design/fairness.md

-- Jobs without an owner wait in a line too, but that line gets a turn only when a claim finds owners besides it.
local function owners_wait(p, version)
  return redis.call('EXISTS', turns_of(p, version, 0), turns_of(p, version, LATE), turns_of(p, version, 9)) > 0
end

-- All lines of a version from which ordinary claims take, the one without an owner first.
local function lines_of(p, version)
  local plain = line_of(p, version)
  local lines, seen = {plain}, {[plain] = true}
  for _, band in ipairs(BANDS) do
    for _, owner in ipairs(redis.call('ZRANGE', turns_of(p, version, band), 0, -1)) do
      local line = line_of(p, version, owner)
      if not seen[line] then lines[#lines + 1], seen[line] = line, true end
    end
  end
  return lines
end

-- The lines of a version, that of its shards included.
local function all_lines_of(p, version)
  local lines = lines_of(p, version)
  lines[#lines + 1] = shards_of(p, version)
  return lines
end

local function is_waited_for(p, version)
  if redis.call('EXISTS', p .. 'solo:' .. version) == 1 then return true end
  for _, line in ipairs(all_lines_of(p, version)) do
    if redis.call('EXISTS', line) == 1 then return true end
  end
  return false
end

-- The number of waiting jobs, counted no further than `enough`. `shared`: there may be jobs with owners.
local function standing(p, version, enough, shared)
  local count = redis.call('ZCARD', line_of(p, version))
  if not shared or count >= enough then return count end
  count = 0
  for _, line in ipairs(lines_of(p, version)) do
    count = count + redis.call('ZCARD', line)
    if count >= enough then return count end
  end
  return count
end

-- How many jobs one call ended or moved besides those that it leased. `left`: how many more it may; then the caller must call again.
local MOVES_MAX = 1000

local function new_tally() return {expired = 0, stepped = 0, gone = 0, left = MOVES_MAX} end

local function tallied(tally, what)
  tally[what], tally.left = tally[what] + 1, tally.left - 1
end

-- End a waiting job that is past its deadline. If its record is gone or says that the job does not wait, it only leaves the line.
local function end_late(p, serial, line, band, now, todo, tally)
  local job = load_job(p, serial, ENDING)
  redis.call('ZREM', line, serial)
  pop_tickets(p, band, 1)
  if job.state == 'queued' then
    expire_job(p, serial, job, now, todo)
    tallied(tally, 'expired')
  elseif not job.state then
    forget_gone(p, serial, todo)
    tallied(tally, 'gone')
  else
    tally.left = tally.left - 1
  end
end

-- At least `limit` live jobs of one line between two scores, behind the first `skip`, in order; or all of them. Jobs past their
-- deadline end here; jobs with less slack than `need` move to the late band (so `to` must end before that band, unless `need` is 0).
local function live(p, version, owner, from, to, skip, limit, need, now, todo, tally)
  local line, jobs = line_of(p, version, owner), {}
  for _ = 1, 8 do
    local page = redis.call('ZRANGEBYSCORE', line, from, to, 'WITHSCORES', 'LIMIT', skip + #jobs, limit)
    for i = 1, #page, 2 do
      local serial, score = page[i], tonumber(page[i + 1])
      local band = band_of(score)
      local deadline = score - band * WEIGHT
      if deadline - now >= math.max(need, 1) then
        jobs[#jobs + 1] = {serial, deadline, band, line, owner}
      elseif tally.left <= 0 then return jobs
      elseif deadline <= now then end_late(p, serial, line, band, now, todo, tally)
      else
        redis.call('ZADD', line, LATE * WEIGHT + deadline, serial)
        if owner ~= '' then take_turn(p, version, LATE, owner) end
        pop_tickets(p, band, 1)
        push_tickets(p, LATE, 1)
        tallied(tally, 'stepped')
      end
    end
    if #jobs >= limit or #page < limit * 2 then break end
  end
  return jobs
end

-- One job of each in turn, then the second of each, and so on.
local function one_each(owners, by_owner, limit)
  local order, place, more = {}, 1, true
  while more and #order < limit do
    more = false
    for _, owner in ipairs(owners) do
      local job = by_owner[owner][place]
      if job then
        more = true
        if #order < limit then order[#order + 1] = job end
      end
    end
    place = place + 1
  end
  return order
end

-- Take jobs of the owners whose turn it is. Owners without jobs lose their turn; the second result says whether any did.
local function look(p, version, band, owners, limit, need, now, todo, tally)
  local from, to, by_owner, total, open = band * WEIGHT, '(' .. (band + 1) * WEIGHT, {}, 0, owners
  while total < limit and #open > 0 do
    local share, more = math.ceil((limit - total) / #open), {}
    for _, owner in ipairs(open) do
      local mine = by_owner[owner] or {}
      local got = live(p, version, owner, from, to, #mine, share, need, now, todo, tally)
      for _, job in ipairs(got) do mine[#mine + 1] = job end
      if #got >= share then more[#more + 1] = owner end
      by_owner[owner], total = mine, total + #got
    end
    open = more
  end
  local dropped = false
  for _, owner in ipairs(owners) do
    if #by_owner[owner] == 0 and redis.call('ZCOUNT', line_of(p, version, owner), from, to) == 0 then
      redis.call('ZREM', turns_of(p, version, band), owner)
      tally.left = tally.left - 1
      dropped = tally.left > 0
    end
  end
  return one_each(owners, by_owner, limit), dropped
end

-- The next jobs of a band, up to `limit`, owner by owner.
local function in_turn(p, version, band, limit, need, now, todo, tally)
  if redis.call('ZCOUNT', line_of(p, version), band * WEIGHT, '(' .. (band + 1) * WEIGHT) > 0 then
    take_turn(p, version, band, '')
  end
  local order, dropped
  repeat
    local owners = redis.call('ZRANGE', turns_of(p, version, band), 0, limit - 1)
    order, dropped = look(p, version, band, owners, limit, need, now, todo, tally)
  until #order >= limit or not dropped
  return order
end

-- The owners that were served go to the end of the turns, in the order of the batch.
local function pass_turns(p, version, served)
  local last = {}
  for _, job in ipairs(served) do
    local band, owner = job.entry[3], job.entry[5]
    local turns = turns_of(p, version, band)
    last[band] = (last[band] or redis.call('ZRANGE', turns, -1, -1, 'WITHSCORES')[2] or 0) + 1
    redis.call('ZADD', turns, last[band], owner)
  end
end

local LOOKS, LOOK = 16, 16 -- a deep queue is sampled in LOOKS places, LOOK jobs each

-- Since when the oldest of these jobs waits; the first one without a delay, by age, waits for longer than those behind it.
local function oldest_of(p, serials)
  local oldest
  table.sort(serials)
  for _, serial in ipairs(serials) do
    local since, had_delay = waits_since(p, serial)
    oldest = math.min(oldest or math.huge, since or math.huge)
    if since and not had_delay then break end
  end
  return oldest
end

-- The age of the oldest of `n` waiting jobs from rank `from` on. Jobs are in order of deadline, so the oldest may stand anywhere;
-- serials ascend with time, so the smallest serial is the oldest job. A queue too deep to be read whole is sampled, its head first:
-- the age is exact if all jobs have the same time to their deadline, else it is that of the oldest job in the sample. A job that
-- had a delay waits only since its end, so younger jobs are looked at as well.
local function oldest_age(p, ready, from, n, now)
  local step = math.max(LOOK, n / LOOKS)
  local first, sample, at = nil, {}, 0
  while at < n do
    local rank = from + math.floor(at)
    for _, serial in ipairs(redis.call('ZRANGE', ready, rank, math.min(rank + LOOK, from + n) - 1)) do
      sample[#sample + 1] = serial
      if not first or serial < first then first = serial end
    end
    at = at + step
  end
  if not first then return 0 end
  local since, had_delay = waits_since(p, first)
  return now - (had_delay and oldest_of(p, sample) or since or now)
end

-- The same for all waiting jobs of a queue, of every priority.
local function oldest_waiting(p, now)
  local oldest = 0
  for _, version in ipairs(redis.call('SMEMBERS', p .. 'versions')) do
    local lines = all_lines_of(p, version)
    lines[#lines + 1] = p .. 'solo:' .. version
    for _, line in ipairs(lines) do
      local n = redis.call('ZCARD', line)
      if n > 0 then oldest = math.max(oldest, oldest_age(p, line, 0, n, now)) end
    end
  end
  return oldest
end
