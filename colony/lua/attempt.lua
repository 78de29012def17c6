#!lua flags=allow-oom
-- attempt: count that a redelivered envelope is about to be handled again.
--
-- KEYS
--   1   trace     record of the trace
--   2   attempts  handles begun and their tokens, by envelope
-- ARGV
--   1   envelope  id of the envelope
--   2   token     made once for each handle: the server it began under, a slash, an id
-- RETURNS
--   begun <n>     for the n-th time since it was first redelivered, as far as it is to blame
--   fenced        the trace takes no more work, or is gone; nothing is written
-- REPEATS
--   safe: the token of the last handle is remembered, and gets the same number
local trace, attempts, envelope, token = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local FORGIVEN = 5

local function holds(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 2 or not (holds(trace, 'hash') and holds(attempts, 'hash')) then
  return redis.error_reply('ERR attempt: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'cause', 'live')
if not record[1] or (record[1] == 'ended' and (record[2] ~= 'completed' or record[3] == '0')) then
  return { 'fenced' }
end
local count, last = string.match(redis.call('HGET', attempts, envelope) or '', '^(%d+) (.*)$')
local begun = tonumber(count or '0')
if last ~= token then
  -- What began under a server that is gone was broken off with it, and the envelope is not to
  -- blame: but for so often only, since it may be what ends the server, with its own process.
  local under, now = string.match(last or '', '^([^/]+)/'), string.match(token, '^([^/]+)/')
  local field = envelope .. ' forgiven'
  local forgiven = tonumber(redis.call('HGET', attempts, field) or '0') or FORGIVEN
  if under and under ~= now and forgiven < FORGIVEN then
    redis.call('HSET', attempts, field, forgiven + 1)
  else
    begun = begun + 1
  end
  redis.call('HSET', attempts, envelope, begun .. ' ' .. token)
end
return { 'begun', begun }
