#!lua flags=allow-oom
-- end_quiet: end a trace that nothing moves any more.
--
-- KEYS
--   1   trace      record of the trace
--   2   open       traces that have not ended
--   3   ended      traces that have ended
--   4   deadlines  traces by deadline
-- ARGV
--   1   trace_id   id of the trace
-- RETURNS
--   ended <cause>  completed, or failed where it has a dead letter and no output
--   stale          it is not quiet any more; nothing is written
-- REPEATS
--   safe: an ended trace is not quiet
local trace, open, ended, deadlines, id = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 1 or not (holds(trace, 'hash', 'HSET') and holds(open, 'zset', 'ZREM')
    and holds(ended, 'zset', 'ZADD') and holds(deadlines, 'zset', 'ZREM')) then
  return redis.error_reply('ERR end_quiet: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'live', 'outputs', 'dead', 'error_code')
if record[1] ~= 'quiet' or record[2] ~= '0' then
  return { 'stale' }
end
local cause, reason = 'completed', ''
if record[3] == '0' and record[4] ~= '0' then
  cause, reason = 'failed', record[5] or ''
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', trace, 'state', 'ended', 'cause', cause, 'reason', reason, 'ended_at', now)
redis.call('ZREM', open, id)
redis.call('ZREM', deadlines, id)
redis.call('ZADD', ended, now, id)
return { 'ended', cause }
