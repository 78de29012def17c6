#!lua flags=allow-oom
-- end_trace: end a trace that still has envelopes under way; they are fenced from here on.
--
-- KEYS
--   1   trace      record of the trace
--   2   open       traces that have not ended
--   3   ended      traces that have ended
--   4   deadlines  traces by deadline
--   5   quiet      stream of traces with no live envelope
-- ARGV
--   1   trace_id   id of the trace
--   2   cause      cancelled or failed
--   3   reason     code that says why
-- RETURNS
--   ended          now, for this cause
--   before <cause> it had ended before; nothing is written
--   unknown        there is no such trace; nothing is written
-- REPEATS
--   safe: the first end stands, and a repeat is told its cause
local trace, open, ended, deadlines, quiet = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, cause, reason = ARGV[1], ARGV[2], ARGV[3]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 3 or not (cause == 'cancelled' or cause == 'failed')
    or not (holds(trace, 'hash', 'HSET') and holds(open, 'zset', 'ZREM')
    and holds(ended, 'zset', 'ZADD') and holds(deadlines, 'zset', 'ZREM')
    and holds(quiet, 'stream', 'XADD')) then
  return redis.error_reply('ERR end_trace: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'cause', 'live')
if not record[1] then
  return { 'unknown' }
end
if record[1] == 'ended' then
  return { 'before', record[2] }
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', trace, 'state', 'ended', 'cause', cause, 'reason', reason, 'ended_at', now)
redis.call('ZREM', open, id)
redis.call('ZREM', deadlines, id)
redis.call('ZADD', ended, now, id)
if record[3] == '0' then
  redis.call('XADD', quiet, '*', 'trace', id)
end
return { 'ended' }
