#!lua
-- make_session: open a session of an agent, with what was said in it before.
--
-- KEYS
--   1   session     record of the session to open
--   2   history     of the session
--   3   sessions    sessions by their newest change
--   4   owned       those of the same owner
-- ARGV
--   1   fields      of its record: name, value
--   2   rows        of its history
--   3   listed      what names it in the lists
--   4   keep_ms     how long it is kept, unless a run begins
-- RETURNS
--   made            the session is there, idle
--   repeated        it was there before; nothing is written
-- REPEATS
--   safe: a session that is there is not made again
local session, history, sessions, owned = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local listed, keep_ms = ARGV[3], tonumber(ARGV[4])

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = #ARGV == 4 and keep_ms and holds(session, 'hash', 'HSET', 'PEXPIRE') and holds(history, 'list', 'RPUSH', 'PEXPIRE')
    and holds(sessions, 'zset', 'ZADD') and holds(owned, 'zset', 'ZADD')
local fields, rows = sound and cmsgpack.unpack(ARGV[1]), sound and cmsgpack.unpack(ARGV[2])
if not sound then
  return redis.error_reply('ERR make_session: wrong arguments, keys or permissions')
end
if redis.call('EXISTS', session) == 1 then return { 'repeated' } end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', session, 'state', 'idle', 'created_at', now, 'updated_at', now)
for _, field in ipairs(fields) do redis.call('HSET', session, field[1], field[2]) end
for _, row in ipairs(rows) do redis.call('RPUSH', history, row) end
redis.call('ZADD', sessions, now, listed)
redis.call('ZADD', owned, now, listed)
if keep_ms > 0 then
  for _, kept in ipairs({ session, history }) do redis.call('PEXPIRE', kept, keep_ms) end
end
return { 'made' }
