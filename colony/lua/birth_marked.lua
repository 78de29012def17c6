#!lua
-- birth_marked: open a trace with its first envelope, where the mark of its source rises by it.
--
-- KEYS
--   1   marks       of the source, by name, and how many births each has
--   2   trace       record of the trace to open
--   3   open        traces that have not ended
--   4   stream      where the first envelope goes
--   5   belongings  further keys that are kept as long as the trace
--   6   order       traces of the session by their place in it
--   7+  blobs       that the envelope refers to
-- ARGV
--   1   name        of the mark
--   2   mark        that the source reaches by this birth
--   3   after       the mark it builds on; empty where any lower one will do
--   4   trace_id    id of the trace, which is that of its first envelope
--   5   head        of the first envelope
--   6   body        of the first envelope
--   7   entry       the source, as the trace is told to have begun there
--   8   session     session the trace belongs to, where it gets the last place; or empty
-- RETURNS
--   born <id>       the trace is open with one live envelope
--   passed <mark>   the mark is another one than `after`, or as high; nothing is written
--   blob_lost       a blob is gone; nothing is written
-- REPEATS
--   safe: the mark rises by the birth, and is passed from then on
local marks, trace, open, stream, belongings = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local order, name, mark, after, id = KEYS[6], ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local head, body, entry, session = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = #ARGV == 8 and mark and mark >= 0 and mark < 2 ^ 53
    and (after == '' or tonumber(after)) and holds(marks, 'hash', 'HSET', 'HINCRBY')
    and holds(trace, 'hash', 'HSET') and holds(open, 'zset', 'ZADD')
    and holds(stream, 'stream', 'XADD') and holds(belongings, 'set', 'SADD')
    and holds(order, 'zset', 'ZADD', 'ZRANGE')
for n = 7, #KEYS do sound = sound and holds(KEYS[n], 'string', 'PERSIST') end
local counted = sound and redis.call('HGET', marks, 'births:' .. name)
if not sound or (counted and not tonumber(counted)) then
  return redis.error_reply('ERR birth_marked: wrong arguments, keys or permissions')
end

local reached = tonumber(redis.call('HGET', marks, 'mark:' .. name) or -1) or -1
if reached >= mark or (after ~= '' and reached ~= tonumber(after)) then
  return { 'passed', string.format('%.0f', reached) }
end
for n = 7, #KEYS do
  if redis.call('EXISTS', KEYS[n]) == 0 then return { 'blob_lost' } end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', marks, 'mark:' .. name, string.format('%.0f', mark))
redis.call('HINCRBY', marks, 'births:' .. name, 1)
redis.call('HSET', trace, 'state', 'open', 'live', 1, 'created_at', now, 'entry', entry,
  'session', session, 'replayed_from', '', 'outputs', 0, 'dead', 0, 'revivals', 0, 'steps', 1)
for n = 7, #KEYS do
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
