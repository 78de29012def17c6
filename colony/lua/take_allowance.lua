#!lua flags=allow-oom
-- take_allowance: let one call to an endpoint through, or say how long it has to wait.
--
-- KEYS
--   1   budget    what all processes know of the endpoint
-- ARGV
--   1   token     of the call
--   2   lease_ms  how long it counts as under way, where it is never settled
--   3   cost      tokens it is expected to cost
--   4   requests  that may begin in a minute; 0 is no limit
--   5   tokens    that may be spent in a minute; 0 is no limit
--   6   flights   that may be under way at once; 0 is no limit
-- RETURNS
--   taken             it is let through
--   probe             it is let through, and for a minute nobody else until it is settled
--   wait <ms> <why>   it is not; nothing is written
-- REPEATS
--   safe: a call that is under way is let through again, counted once, with a new lease
local budget, token = KEYS[1], ARGV[1]
local lease_ms, cost, flights = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[6])
local limits = { requests = tonumber(ARGV[4]), tokens = tonumber(ARGV[5]) }

local kind = redis.call('TYPE', budget).ok
local allowed = kind == 'hash' or kind == 'none'
for _, command in ipairs({ 'HGETALL', 'HSET', 'HINCRBY', 'HDEL', 'PEXPIRE' }) do
  allowed = allowed and redis.acl_check_cmd(command, budget)
end
if not (allowed and #ARGV == 6 and lease_ms and cost and limits.requests and limits.tokens and flights) then
  return redis.error_reply('ERR take_allowance: wrong arguments, keys or permissions')
end
local time = redis.call('TIME')
local second, now = tonumber(time[1]), time[1] * 1000 + math.floor(time[2] / 1000)
local told, live, gone, under_way, last = {}, {}, {}, 0, now + math.max(lease_ms, 60000)
local probed, spent = false, { requests = {}, tokens = {} }
local fields = redis.call('HGETALL', budget)
for n = 1, #fields, 2 do
  local what, name = string.match(fields[n], '^(%l+) (.+)$')
  local number = tonumber(string.match(fields[n + 1], '^%-?%d+'))
  if not what then
    told[fields[n]] = fields[n + 1]
  elseif (what == 'call' and number <= now) or (spent[what] and tonumber(name) <= second - 60) then
    gone[#gone + 1] = fields[n]
  elseif what == 'call' then
    live[name], under_way, last = fields[n + 1], under_way + 1, math.max(last, number)
    local begun = tonumber(string.match(fields[n + 1], '^%d+ (%d+) %d+ probe$'))
    probed = probed or (begun and begun > second - 60)
  else
    table.insert(spent[what], { tonumber(name), number })
  end
end

-- Milliseconds until `more` of `what` are within the limit, as the oldest seconds leave the minute.
local function until_room(what, more)
  local limit, sum, wait = limits[what], 0, 0
  for _, one in ipairs(spent[what]) do sum = sum + one[2] end
  local excess = limit == 0 and 0 or sum + math.min(more, limit) - limit
  table.sort(spent[what], function(a, b) return a[1] < b[1] end)
  for _, one in ipairs(spent[what]) do
    if excess <= 0 then break end
    excess, wait = excess - one[2], (one[1] + 60) * 1000 - now
  end
  return wait
end

local paused, counted = tonumber(told.paused), live[token] and string.match(live[token], ' (.+)$')
-- What has waited for a pause does not begin all at once: first there is room for two more calls
-- than are under way, then for another one with every answer and with every second.
local resumed, room = not paused and tonumber(told.resumed), math.huge
if resumed then room = told.room + math.floor((now - resumed) / 1000) end
if not counted then
  if paused and paused > now then return { 'wait', paused - now, told.cause } end
  if paused and probed then return { 'wait', 500, told.cause } end
  if under_way >= room then return { 'wait', 500, 'cooldown' } end
  if flights > 0 and under_way >= flights then return { 'wait', 500, 'in_flight' } end
  for _, what in ipairs({ 'requests', 'tokens' }) do
    local wait = until_room(what, what == 'requests' and 1 or cost)
    if wait > 0 then return { 'wait', wait, what } end
  end
  redis.call('HINCRBY', budget, 'requests ' .. second, 1)
  redis.call('HINCRBY', budget, 'tokens ' .. second, cost)
  counted = second .. ' ' .. cost .. (paused and ' probe' or '')
  if paused then redis.call('HSET', budget, 'room', under_way + 2) end
end
for _, field in ipairs(gone) do redis.call('HDEL', budget, field) end
redis.call('HSET', budget, 'call ' .. token, string.format('%.0f %s', now + lease_ms, counted))
redis.call('PEXPIRE', budget, string.format('%.0f', math.max(last, paused or 0) - now + 60000))
local probing = string.match(counted, ' probe$')
return { probing and 'probe' or 'taken' }
