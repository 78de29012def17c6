#!lua flags=allow-oom
-- settle_allowance: say what became of a call to an endpoint, and pause all where it has to be.
--
-- KEYS
--   1   budget    what all processes know of the endpoint
-- ARGV
--   1   token     of the call
--   2   cost      tokens it cost; empty where nobody counted them
--   3   outcome   answered, limited (too many requests), failed (the endpoint), neutral
--   4   pause_ms  how long a limited call asks all to wait; empty or 0 where it does not say
--   5   failures  in a row that open the breaker
--   6   open_ms   how long the breaker stays open before the next probe
-- RETURNS
--   settled       the call is not under way any more, and what it says holds for all
--   unknown       it was settled before, or its lease is over and forgotten; nothing is written
-- REPEATS
--   safe: a call is settled once
local budget, token, cost, outcome = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local pause_ms, most, open_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

local kind = redis.call('TYPE', budget).ok
local allowed = kind == 'hash' or kind == 'none'
for _, command in ipairs({ 'HGET', 'HSET', 'HINCRBY', 'HDEL', 'HEXISTS', 'PEXPIRE' }) do
  allowed = allowed and redis.acl_check_cmd(command, budget)
end
local known = outcome == 'answered' or outcome == 'limited' or outcome == 'failed' or outcome == 'neutral'
if not (allowed and known and #ARGV == 6 and most and open_ms) then
  return redis.error_reply('ERR settle_allowance: wrong arguments, keys or permissions')
end
local call = redis.call('HGET', budget, 'call ' .. token)
if not call then
  return { 'unknown' }
end
local second, expected, probe = string.match(call, '^%d+ (%d+) (%d+)(.*)$')
local paused, probing = tonumber(redis.call('HGET', budget, 'paused') or nil), probe == ' probe'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function pause(ms, cause)
  if ms <= 0 or (paused and paused >= now + ms) then return end
  redis.call('HSET', budget, 'paused', string.format('%.0f', now + ms), 'cause', cause)
  redis.call('PEXPIRE', budget, string.format('%.0f', ms + 120000), 'GT')
end

redis.call('HDEL', budget, 'call ' .. token)
if cost and redis.call('HEXISTS', budget, 'tokens ' .. second) == 1 then
  redis.call('HINCRBY', budget, 'tokens ' .. second, cost - expected)
end
if outcome == 'answered' and not paused then
  redis.call('HDEL', budget, 'failures', 'limits')
  if redis.call('HEXISTS', budget, 'resumed') == 1 then redis.call('HINCRBY', budget, 'room', 1) end
elseif outcome == 'answered' and probing and paused <= now then
  redis.call('HDEL', budget, 'paused', 'cause', 'failures', 'limits')
  redis.call('HSET', budget, 'resumed', string.format('%.0f', now))
elseif outcome == 'limited' and pause_ms and pause_ms > 0 then
  pause(pause_ms, 'cooldown')
elseif outcome == 'limited' and not (paused and paused > now) then
  -- What was under way together is refused together, and counts once.
  local limits = redis.call('HINCRBY', budget, 'limits', 1)
  pause(math.min(60000, 1000 * 2 ^ (limits - 1)), 'cooldown')
elseif outcome == 'failed' and redis.call('HINCRBY', budget, 'failures', 1) >= most then
  if probing or not (paused and paused > now) then pause(open_ms, 'breaker') end
end
return { 'settled' }
