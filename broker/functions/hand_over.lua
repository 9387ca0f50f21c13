-- How a submit hands its jobs to a waiting slot. The submit makes the claim that the slot has left as an offer, and publishes the
-- answer on the slot's channel, so that a job that meets an idle slot is stored and leased in one call, with one sync. Everything
-- that a claim decides is decided by `claim`, which also ends the offer; a job that cannot be handed over waits in line as before.
-- D62: docs/design/batching.md
local OFFERS_TRIED = 4 -- some offers are from slots that are gone; each is tried once

-- The arguments of the claim: those that `keep_offer` keeps, in the order of `claim`.
local function claim_of(offer)
  local words = {}
  for word in string.gmatch(offer, '([^\n]*)\n') do words[#words + 1] = word end
  -- The nonce stands first there, in front of version and worker.
  table.insert(words, @claim.nonce, table.remove(words, 1))
  words[@claim.offer] = '1'
  return words
end

-- The reply of `claim` as one text: the nonce and the length of each value, and behind them the values.
local function as_message(nonce, reply)
  local sizes = {}
  for i, value in ipairs(reply) do
    if type(value) == 'number' then
      value = string.format('%.0f', value)
      reply[i] = value
    end
    sizes[i] = #value
  end
  return 'h' .. nonce .. ' ' .. table.concat(sizes, ' ') .. '\n' .. table.concat(reply)
end

-- Queue the jobs again that a claim leased to a slot which did not get the answer.
local function take_back(p, worker, leased, now)
  local todo = {}
  for _, job in ipairs(leased or {}) do
    release_one(p, job[1], job[2], 'unstarted', '', now, todo)
    later(todo, 'HDEL', p .. 'held:' .. worker, job[1])
  end
  flush(p, todo)
end

-- Whether the slot got the answer to the claim, which may also say that it has to ask again.
local function serve(p, args)
  local todo, worker = {}, args[@claim.worker]
  local ok, reply = pcall(claim, {p}, args, todo)
  local leased = todo.leased
  if ok then
    local sent, heard = pcall(redis.call, 'SPUBLISH', p .. 'worker:' .. worker, as_message(args[@claim.nonce], reply))
    if sent and heard > 0 then return true end -- guard:heard
  else
    pcall(complete, p, todo)
    drop_offer(p, args)
  end
  take_back(p, worker, leased, now_ms())
  return false
end

local function offer_jobs(p, version)
  local offers = offers_of(p, version)
  for _ = 1, OFFERS_TRIED do
    local worker, offer = unpack(redis.call('HRANDFIELD', offers, 1, 'WITHVALUES'))
    if not worker then return end
    if serve(p, claim_of(offer)) then return end
  end
end

-- Serve a slot of this version that waits, if there is one. An error here must not fail the submit, whose jobs are stored.
function hand_over(p, version) pcall(offer_jobs, p, version) end

-- withdraw: take back the offer of a slot that no longer waits.
-- ARGS: version, worker
-- REPLY: 1, or 0 if there was none: a submit has used it, and its message is on the way
-- LARGEST: one offer
local function withdraw(keys, args) return drop_offer(keys[1], args) end

register('withdraw', withdraw, {'allow-oom'})
