#!lua
-- birth: open a trace with its first envelope, once per guard.
--
-- KEYS
--   1   guard       what the first birth under this guard answered
--   2   trace       record of the trace to open
--   3   open        traces that have not ended
--   4   deadlines   traces by deadline
--   5   stream      where the first envelope goes
--   6   belongings  further keys that are kept as long as the trace
--   7   order       traces of the session by their place in it
--   8+  blobs       that the envelope refers to
-- ARGV
--   1   trace_id    id of the trace, which is that of its first envelope
--   2   digest      of the request, so that no guard serves two different ones
--   3   keep_ms     how long the guard is remembered; 0 where the trace itself is the guard
--   4   head        of the first envelope
--   5   body        of the first envelope
--   6   entry       target of the first envelope
--   7   session     session the trace belongs to, where it gets the last place; or empty
--   8   timeout_ms  after which the trace is ended; 0 for never
-- RETURNS
--   born <id>       the trace is open with one live envelope
--   repeated <id>   born before under this guard; nothing is written
--   conflict <id>   born before under this guard for another request; nothing is written
--   blob_lost       a blob is gone; nothing is written
-- REPEATS
--   safe: the guard, or the trace, remembers that it was born
local guard, trace, open, deadlines, stream = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local belongings, order, id, digest, keep_ms = KEYS[6], KEYS[7], ARGV[1], ARGV[2], tonumber(ARGV[3])
local head, body, entry, session, timeout_ms = ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = keep_ms and timeout_ms and #ARGV == 8 and holds(guard, 'hash', 'HSET', 'PEXPIRE')
    and holds(trace, 'hash', 'HSET') and holds(open, 'zset', 'ZADD')
    and holds(deadlines, 'zset', 'ZADD') and holds(stream, 'stream', 'XADD')
    and holds(belongings, 'set', 'SADD') and holds(order, 'zset', 'ZADD', 'ZRANGE')
for n = 8, #KEYS do sound = sound and holds(KEYS[n], 'string', 'PERSIST') end
if not sound then
  return redis.error_reply('ERR birth: wrong arguments, keys or permissions')
end

local before = redis.call('HMGET', guard, 'trace', 'digest')
if before[1] then
  return { before[2] == digest and 'repeated' or 'conflict', before[1] }
end
if redis.call('EXISTS', trace) == 1 then
  return { 'repeated', id }
end
for n = 8, #KEYS do
  if redis.call('EXISTS', KEYS[n]) == 0 then return { 'blob_lost' } end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if keep_ms > 0 then
  redis.call('HSET', guard, 'trace', id, 'digest', digest)
  redis.call('PEXPIRE', guard, keep_ms)
end
redis.call('HSET', trace, 'state', 'open', 'live', 1, 'created_at', now, 'entry', entry,
  'session', session, 'replayed_from', '', 'outputs', 0, 'dead', 0, 'revivals', 0,
  'steps', 1)
if timeout_ms > 0 then
  redis.call('ZADD', deadlines, now + timeout_ms, id)
end
for n = 8, #KEYS do
  redis.call('PERSIST', KEYS[n])
  redis.call('SADD', belongings, KEYS[n])
end
if session ~= '' then
  local last = redis.call('ZRANGE', order, -1, -1, 'WITHSCORES')
  redis.call('ZADD', order, (last[2] or 0) + 1, id)
end
redis.call('ZADD', open, now, id)
redis.call('XADD', stream, '*', 'head', head, 'body', body)
return { 'born', id }
