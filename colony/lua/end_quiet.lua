#!lua flags=allow-oom
-- end_quiet: end a trace that nothing moves any more, and pass the turn of its session on.
--
-- KEYS
--   1   trace      record of the trace
--   2   open       traces that have not ended
--   3   ended      traces that have ended
--   4   deadlines  traces by deadline
--   5   order      traces of the session by their place in it
--   6   parked     envelopes that wait for the turn of their trace, by trace
--   7   waiting    sessions by how many of their traces wait
--   8   router     where the envelopes of the next trace go
-- ARGV
--   1   trace_id   id of the trace
--   2   session    session of the trace, or empty
-- RETURNS
--   ended <cause>  completed, or failed where it has a dead letter and no output
--   elsewhere <session>  its record names another session; nothing is written
--   run <session>  it drives an agent's session; nothing is written
--   stale          it is not quiet any more; nothing is written
-- REPEATS
--   safe: an ended trace is not quiet
local trace, open, ended, deadlines, order = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local parked, waiting, router, id, session = KEYS[6], KEYS[7], KEYS[8], ARGV[1], ARGV[2]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
-- A trace of no session is to cost no more than without sessions.
local sound = #KEYS == 8 and #ARGV == 2 and holds(trace, 'hash', 'HSET')
    and holds(open, 'zset', 'ZREM') and holds(ended, 'zset', 'ZADD')
    and holds(deadlines, 'zset', 'ZREM')
if session ~= '' then
  sound = sound and holds(order, 'zset', 'ZRANGE', 'ZREM')
      and holds(parked, 'hash', 'HGET', 'HDEL') and holds(waiting, 'zset', 'ZINCRBY', 'ZREM')
      and holds(router, 'stream', 'XADD')
end
if not sound then
  return redis.error_reply('ERR end_quiet: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'live', 'outputs', 'dead', 'error_code',
  'session', 'agent_session')
if record[1] ~= 'quiet' or record[2] ~= '0' then
  return { 'stale' }
end
if (record[6] or '') ~= session then
  return { 'elsewhere', record[6] or '' }
end
if (record[7] or '') ~= '' then
  return { 'run', record[7] }
end
local first = session ~= '' and redis.call('ZRANGE', order, 0, 1) or {}
local heir = first[1] == id and first[2] or first[1]
local kept = heir and redis.call('HGET', parked, heir)
local released = kept and cmsgpack.unpack(kept) or {}
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
if session ~= '' then
  redis.call('ZREM', order, id)
end
for _, envelope in ipairs(released) do
  redis.call('XADD', router, '*', 'head', envelope[1], 'body', envelope[2])
end
if kept and redis.call('HDEL', parked, heir) == 1
    and tonumber(redis.call('ZINCRBY', waiting, -1, session)) <= 0 then
  redis.call('ZREM', waiting, session)
end
return { 'ended', cause }
