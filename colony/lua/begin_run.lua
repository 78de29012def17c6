#!lua
-- begin_run: open a run of a session with its first envelope, once per guard.
--
-- KEYS
--   1   guard       what the first birth under this guard answered
--   2   trace       record of the trace to open
--   3   open        traces that have not ended
--   4   deadlines   traces by deadline
--   5   stream      where the first envelope goes
--   6   belongings  further keys that are kept as long as the trace
--   7   run         record of the run
--   8   session     record of its session
--   9   events      of the session
--   10  history     of the session
--   11  steers      of the session
--   12  sessions    sessions by their newest change
--   13  owned       those of the same owner
--   14+ blobs       that the envelope refers to
-- ARGV
--   1   trace_id    id of the trace, which is that of the run and of its first envelope
--   2   digest      of the request, so that no guard serves two different ones
--   3   keep_ms     how long the guard is remembered; 0 where the trace itself is the guard
--   4   head        of the first envelope
--   5   body        of the first envelope
--   6   entry       target of the first envelope
--   7   timeout_ms  after which the trace is ended; 0 for never
--   8   session_id  id of the session
--   9   kind        prompt, retry or compact
--   10  fields      of the record of the run: name, value
--   11  init        what session.init says
--   12  again       what model.retry says, by the progress of the step that is repeated
--   13  channel     of the session
--   14  log_ms      how long events are kept; older ones go
--   15  listed      what names the session in the lists
-- RETURNS
--   born <id>       the run is open with one live envelope
--   repeated <id>   born before under this guard; nothing is written
--   conflict <id>   born before under this guard for another request; nothing is written
--   missing         there is no such session; nothing is written
--   busy            a run of it is under way; nothing is written
--   awaiting        a run of it waits for an answer; nothing is written
--   retry_pending   a retry is owed before anything else; nothing is written
--   ineligible      its last step is not one to repeat; nothing is written
--   blob_lost       a blob is gone; nothing is written
-- REPEATS
--   safe: the guard, or the trace, remembers that it was born
local guard, trace, open, deadlines, stream = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local belongings, run, session, events, history = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local steers, sessions, owned = KEYS[11], KEYS[12], KEYS[13]
local id, digest, keep_ms, head, body, entry = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4],
  ARGV[5], ARGV[6]
local timeout_ms, session_id, kind, init, channel = tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[11],
  ARGV[13]
local log_ms, listed = tonumber(ARGV[14]), ARGV[15]

local function holds(key, type, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == type or found == 'none'
end
local sound = keep_ms and timeout_ms and log_ms and #ARGV == 15
    and (kind == 'prompt' or kind == 'retry' or kind == 'compact')
    and holds(guard, 'hash', 'HSET', 'PEXPIRE') and holds(trace, 'hash', 'HSET')
    and holds(open, 'zset', 'ZADD') and holds(deadlines, 'zset', 'ZADD')
    and holds(stream, 'stream', 'XADD') and holds(belongings, 'set', 'SADD')
    and holds(run, 'hash', 'HSET') and holds(session, 'hash', 'HSET', 'HINCRBY', 'PERSIST')
    and holds(events, 'stream', 'XADD', 'XTRIM', 'PERSIST') and holds(history, 'list', 'PERSIST')
    and holds(steers, 'list', 'DEL') and holds(sessions, 'zset', 'ZADD')
    and holds(owned, 'zset', 'ZADD') and redis.acl_check_cmd('PUBLISH', channel, '')
for n = 14, #KEYS do sound = sound and holds(KEYS[n], 'string', 'PERSIST') end
local fields, again = sound and cmsgpack.unpack(ARGV[10]), sound and cmsgpack.unpack(ARGV[12])
local known = sound and redis.call('HMGET', session, 'state', 'retry_pending', 'disposition',
  'progress', 'runs')
if not sound or not tonumber(known[5] or 0) then
  return redis.error_reply('ERR begin_run: wrong arguments, keys or permissions')
end

local before = redis.call('HMGET', guard, 'trace', 'digest')
if before[1] then
  return { before[2] == digest and 'repeated' or 'conflict', before[1] }
end
if redis.call('EXISTS', trace) == 1 then return { 'repeated', id } end
local state, owed, disposition, progress = known[1], known[2] == '1', known[3], known[4]
local shown = progress == 'precommit' or progress == 'visible'
if not state then return { 'missing' } end
if state == 'running' then return { 'busy' } end
if state == 'awaiting' then return { 'awaiting' } end
if kind ~= 'retry' and owed then return { 'retry_pending' } end
if kind == 'retry' and not owed
    and not (state == 'failed' and disposition == 'retryable' and shown) then
  return { 'ineligible' }
end
for n = 14, #KEYS do
  if redis.call('EXISTS', KEYS[n]) == 0 then return { 'blob_lost' } end
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if keep_ms > 0 then
  redis.call('HSET', guard, 'trace', id, 'digest', digest)
  redis.call('PEXPIRE', guard, keep_ms)
end
redis.call('HSET', trace, 'state', 'open', 'live', 1, 'created_at', now, 'entry', entry,
  'session', '', 'replayed_from', '', 'outputs', 0, 'dead', 0, 'revivals', 0, 'steps', 1,
  'agent_session', session_id)
if timeout_ms > 0 then redis.call('ZADD', deadlines, now + timeout_ms, id) end
for n = 14, #KEYS do
  redis.call('PERSIST', KEYS[n])
  redis.call('SADD', belongings, KEYS[n])
end
redis.call('ZADD', open, now, id)
redis.call('HSET', run, 'session', session_id, 'kind', kind, 'started_at', now, 'state', 'running')
for _, field in ipairs(fields) do redis.call('HSET', run, field[1], field[2]) end
for _, kept in ipairs({ session, events, history }) do redis.call('PERSIST', kept) end
redis.call('DEL', steers)
redis.call('HSET', session, 'state', 'running', 'run_id', id, 'pending', 0, 'updated_at', now,
  'retry_pending', kind == 'retry' and '1' or '')
redis.call('HINCRBY', session, 'runs', 1)
redis.call('ZADD', sessions, now, listed)
redis.call('ZADD', owned, now, listed)
if log_ms > 0 then redis.call('XTRIM', events, 'MINID', '~', math.max(0, now - log_ms)) end
local told = { { 'session.init', init } }
if kind == 'retry' then told[2] = { 'model.retry', again[progress] or again.precommit } end
for seq, event in ipairs(told) do
  local at = redis.call('XADD', events, '*', 'run', id, 'seq', seq, 'kind', event[1],
    'turn', '-1', 'payload', event[2])
  if seq == 1 then redis.call('HSET', run, 'first_event', at) end
  redis.call('PUBLISH', channel, cmsgpack.pack({ at, id, tostring(seq), event[1], '-1', event[2] }))
end
redis.call('HSET', run, 'seq', #told)
redis.call('XADD', stream, '*', 'head', head, 'body', body)
return { 'born', id }
