-- API keys that were made while gateways run, and what is left of each key's rate, over all gateways of the store.
--
-- KEYS[1] of these functions is `pk:{keys}:`. Of the users of the store only the gateways' has rights on what begins so.
--   known     hash   key id -> the key as JSON; EDITION -> another number after each change
--   buckets   hash   key id -> level, moment in ms and demand of its bucket; a key without an entry has a full bucket
--   gateways  zset   gateway process -> moment in ms of its last call
-- D113: docs/design/gateway.md

local EDITION = '#' -- no id of a key
local SPEND_MAX = 512
local DEMAND_S = 1.0 -- after this time without requests, 1/e of the demand is left
-- A full bucket goes on filling for this long, because gateways report later what they let through meanwhile. They hold a burst.
local UNHEARD_S = 0.5

-- change_key: put, replace or remove a key, unless another process changed it first.
-- ARGS: key id, the text as it was read ('' = none), the new text ('' = remove the key), most keys
-- LARGEST: one key
-- REPLY: 1 (changed) | 0 (changed meanwhile) | -1 (there are as many keys as there may be)
local function change_key(keys, args)
  local known = keys[1] .. 'known'
  if (redis.call('HGET', known, args[1]) or '') ~= args[2] then return 0 end
  if args[3] == '' then
    redis.call('HDEL', known, args[1])
    redis.call('HDEL', keys[1] .. 'buckets', args[1])
  else
    if args[2] == '' and redis.call('HLEN', known) > tonumber(args[4]) then return -1 end
    redis.call('HSET', known, args[1], args[3])
  end
  redis.call('HINCRBY', known, EDITION, 1)
  return 1
end

register('change_key', change_key, {'allow-oom'})

local function gateways_of(p, name, now, ttl_ms)
  local gateways = p .. 'gateways'
  redis.call('ZADD', gateways, now, name)
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', gateways, '-inf', now - ttl_ms)) do redis.call('ZREM', gateways, gone) end
  return redis.call('ZCARD', gateways)
end

-- The level and the demand of a key as they are now.
local function bucket_of(text, now, rate, burst)
  if not text then return burst, 0 end
  local level, at, demand = string.match(text, '^(%S+) (%S+) (%S+)$')
  local passed = math.max(0, now - tonumber(at)) / 1000
  level = math.min(burst + UNHEARD_S * rate, tonumber(level) + passed * rate)
  return level, tonumber(demand) * math.exp(-passed / DEMAND_S)
end

-- spend: take from the buckets of keys what a gateway process let through since its last call.
-- ARGS: gateway process, ttl ms; per key: key id, rate per s, burst, tokens let through, tokens asked for
-- LARGEST: SPEND_MAX keys
-- REPLY: edition of the keys, gateway processes that called within the ttl, now in ms; per key its level and the demand, as text
-- A level below 0: gateways let this much through before they learned of each other. It is paid back before anything else passes.
local function spend(keys, args)
  if #args > 2 + 5 * SPEND_MAX then return redis.error_reply('ERR more than ' .. SPEND_MAX .. ' keys in one spend') end
  local p, now = keys[1], now_ms()
  local buckets = p .. 'buckets'
  local reply = {
    tonumber(redis.call('HGET', p .. 'known', EDITION) or 0), gateways_of(p, args[1], now, tonumber(args[2])), now,
  }
  for i = 3, #args, 5 do
    local id, rate, burst = args[i], tonumber(args[i + 1]), tonumber(args[i + 2])
    local level, demand = bucket_of(redis.call('HGET', buckets, id), now, rate, burst)
    level, demand = level - tonumber(args[i + 3]), demand + tonumber(args[i + 4])
    redis.call('HSET', buckets, id, string.format('%.3f %d %.3f', level, now, demand))
    reply[#reply + 1], reply[#reply + 2] = string.format('%.3f', level), string.format('%.3f', demand)
  end
  return reply
end

-- unwaited: spend, because the next call counts again
register('spend', spend, {'allow-oom'})
