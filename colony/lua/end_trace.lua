#!lua flags=allow-oom
-- end_trace: end a trace whatever it has under way, and pass the turn of its session on.
--
-- KEYS
--   1   trace      record of the trace
--   2   open       traces that have not ended
--   3   ended      traces that have ended
--   4   deadlines  traces by deadline
--   5   quiet      stream of traces with no live envelope
--   6   order      traces of the session by their place in it
--   7   parked     envelopes that wait for the turn of their trace, by trace
--   8   waiting    sessions by how many of their traces wait
--   9   router     where the envelopes of the next trace go
-- ARGV
--   1   trace_id   id of the trace
--   2   session    session of the trace, or empty
--   3   cause      cancelled or failed
--   4   reason     code that says why
-- RETURNS
--   ended          now, for this cause; what it had parked is dropped, all else is fenced
--   elsewhere <session>  its record names another session; nothing is written
--   run <session>  it drives an agent's session and has not ended; nothing is written
--   before <cause> it had ended before; a place that it still had is free
--   unknown        there is no such trace; a place that it still had is free
-- REPEATS
--   safe: the first end stands, and a repeat is told its cause; a place is given up once
local trace, open, ended, deadlines, quiet = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local order, parked, waiting, router = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local id, session, cause, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = #ARGV == 4 and (cause == 'cancelled' or cause == 'failed')
    and holds(trace, 'hash', 'HSET', 'HINCRBY') and holds(open, 'zset', 'ZREM')
    and holds(ended, 'zset', 'ZADD') and holds(deadlines, 'zset', 'ZREM')
    and holds(quiet, 'stream', 'XADD') and holds(order, 'zset', 'ZRANGE', 'ZREM')
    and holds(parked, 'hash', 'HGET', 'HDEL') and holds(waiting, 'zset', 'ZINCRBY', 'ZREM')
    and holds(router, 'stream', 'XADD')
local record = sound and redis.call('HMGET', trace, 'state', 'cause', 'live', 'session', 'steps',
  'agent_session')
if not sound or not (tonumber(record[3] or 0) and tonumber(record[5] or 0)) then
  return redis.error_reply('ERR end_trace: wrong arguments, keys or permissions')
end
if record[1] and (record[4] or '') ~= session then
  return { 'elsewhere', record[4] or '' }
end
if record[1] and record[1] ~= 'ended' and (record[6] or '') ~= '' then
  return { 'run', record[6] }
end
local first = session ~= '' and redis.call('ZRANGE', order, 0, 1) or {}
local heir = first[1] == id and first[2] or first[1]
local function kept_of(name)
  local kept = name and redis.call('HGET', parked, name)
  return kept and cmsgpack.unpack(kept) or {}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local dropped, released = #kept_of(session ~= '' and id), kept_of(heir)
redis.call('ZREM', order, id)
for _, envelope in ipairs(released) do
  redis.call('XADD', router, '*', 'head', envelope[1], 'body', envelope[2])
end
local served = session == '' and 0 or redis.call('HDEL', parked, id, heir or id)
if served > 0 and tonumber(redis.call('ZINCRBY', waiting, -served, session)) <= 0 then
  redis.call('ZREM', waiting, session)
end
if not record[1] then return { 'unknown' } end
if record[1] == 'ended' then return { 'before', record[2] } end
local live = tonumber(record[3] or 0) - dropped
redis.call('HSET', trace, 'state', 'ended', 'cause', cause, 'reason', reason, 'ended_at', now)
if dropped > 0 then
  redis.call('HSET', trace, 'live', live)
  redis.call('HINCRBY', trace, 'steps', 1)
end
redis.call('ZREM', open, id)
redis.call('ZREM', deadlines, id)
redis.call('ZADD', ended, now, id)
if live == 0 then redis.call('XADD', quiet, '*', 'trace', id) end
return { 'ended' }
