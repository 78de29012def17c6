#!lua flags=allow-oom
-- revive: take a quiet trace up again with an envelope for its quiet lane.
--
-- KEYS
--   1   trace     record of the trace
--   2   stream    where the envelope goes
-- ARGV
--   1   revival   number of this revival, from 1
--   2   told      how many dead letters have been told of with it
--   3   head      of the envelope
--   4   body      of the envelope
-- RETURNS
--   revived       the trace is open with one live envelope
--   stale         it is not quiet any more, or was revived before; nothing is written
-- REPEATS
--   safe: a revival's number is used once
local trace, stream, revival, told = KEYS[1], KEYS[2], tonumber(ARGV[1]), tonumber(ARGV[2])
local head, body = ARGV[3], ARGV[4]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 4 or not (revival and told and holds(trace, 'hash', 'HSET', 'HINCRBY')
    and holds(stream, 'stream', 'XADD')) then
  return redis.error_reply('ERR revive: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'live', 'revivals', 'steps')
if record[1] ~= 'quiet' or record[2] ~= '0' or tonumber(record[3]) ~= revival - 1
    or not tonumber(record[4] or 0) then
  return { 'stale' }
end
redis.call('HSET', trace, 'state', 'open', 'live', 1, 'revivals', revival, 'told', told)
redis.call('HINCRBY', trace, 'steps', 1)
redis.call('XADD', stream, '*', 'head', head, 'body', body)
return { 'revived' }
