#!lua flags=allow-oom
-- revive: take a quiet trace up again with the envelopes of its quiet lane.
--
-- KEYS
--   1   trace      record of the trace
--   2   log        hop records of the trace
--   3+  streams    stream of each envelope
-- ARGV
--   1   revival    number of this revival, from 1
--   2   outputs    how many envelopes
--   3   records    how many hop records
--   4+  parts      head and body of each envelope, then hop records
-- RETURNS
--   revived <n>    the trace is open with n live envelopes
--   stale          it is not quiet any more, or was revived before; nothing is written
-- REPEATS
--   safe: a revival's number is used once
local trace, log = KEYS[1], KEYS[2]
local revival, outputs, records = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = revival and outputs and records and #KEYS == 2 + outputs
sound = sound and #ARGV == 3 + 2 * outputs + records and outputs > 0
    and holds(trace, 'hash', 'HSET', 'HINCRBY') and holds(log, 'stream', 'XADD')
for n = 3, #KEYS do
  sound = sound and holds(KEYS[n], 'stream', 'XADD')
end
if not sound then
  return redis.error_reply('ERR revive: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'live', 'revivals', 'steps')
if record[1] ~= 'quiet' or record[2] ~= '0' or tonumber(record[3]) ~= revival - 1
    or not tonumber(record[4] or 0) then
  return { 'stale' }
end
redis.call('HSET', trace, 'state', 'open', 'live', outputs, 'revivals', revival)
redis.call('HINCRBY', trace, 'steps', 1)
for n = 1, outputs do
  redis.call('XADD', KEYS[2 + n], '*', 'head', ARGV[2 + 2 * n], 'body', ARGV[3 + 2 * n])
end
for n = 4 + 2 * outputs, #ARGV do
  redis.call('XADD', log, '*', 'record', ARGV[n])
end
return { 'revived', outputs }
