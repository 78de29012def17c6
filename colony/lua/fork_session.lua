#!lua
-- fork_session: open a session with the beginning of the history of another one.
--
-- KEYS
--   1   origin      record of the session that is copied
--   2   said        its history
--   3   session     record of the session to open
--   4   history     of the session to open
--   5   sessions    sessions by their newest change
--   6   owned       those of the same owner
-- ARGV
--   1   fields      of its record: name, value
--   2   rows        how many rows of the history it begins with
--   3   listed      what names it in the lists
--   4   keep_ms     how long it is kept, unless a run begins
-- RETURNS
--   made            the session is there, idle
--   repeated        it was there before; nothing is written
--   missing         there is no session to copy; nothing is written
-- REPEATS
--   safe: a session that is there is not made again
local origin, said, session, history, sessions, owned = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5],
  KEYS[6]
local count, listed, keep_ms = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = #ARGV == 4 and count and keep_ms and holds(origin, 'hash') and holds(said, 'list', 'LRANGE')
    and holds(session, 'hash', 'HSET', 'PEXPIRE')
    and holds(history, 'list', 'RPUSH', 'PEXPIRE')
    and holds(sessions, 'zset', 'ZADD') and holds(owned, 'zset', 'ZADD')
local fields = sound and cmsgpack.unpack(ARGV[1])
if not sound then
  return redis.error_reply('ERR fork_session: wrong arguments, keys or permissions')
end
if redis.call('EXISTS', origin) == 0 then return { 'missing' } end
if redis.call('EXISTS', session) == 1 then return { 'repeated' } end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', session, 'state', 'idle', 'created_at', now, 'updated_at', now)
for _, field in ipairs(fields) do redis.call('HSET', session, field[1], field[2]) end
for _, row in ipairs(count > 0 and redis.call('LRANGE', said, 0, count - 1) or {}) do
  redis.call('RPUSH', history, row)
end
redis.call('ZADD', sessions, now, listed)
redis.call('ZADD', owned, now, listed)
if keep_ms > 0 then
  for _, kept in ipairs({ session, history }) do redis.call('PEXPIRE', kept, keep_ms) end
end
return { 'made' }
