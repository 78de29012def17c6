#!lua flags=allow-oom
-- delete_session: forget a session that no run drives.
--
-- KEYS
--   1   session     record of the session
--   2   events      of the session
--   3   history     of the session
--   4   steers      of the session
--   5   sessions    sessions by their newest change
--   6   owned       those of the same owner
-- ARGV
--   1   listed      what names it in the lists
-- RETURNS
--   deleted         nothing is left of it but the traces of its runs
--   busy            a run of it is under way; nothing is written
--   missing         there is no such session; what still names it is gone
-- REPEATS
--   safe: a session that is gone is not there
local session, events, history, steers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local sessions, owned, listed = KEYS[5], KEYS[6], ARGV[1]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 1 or not (holds(session, 'hash', 'DEL') and holds(events, 'stream', 'DEL')
    and holds(history, 'list', 'DEL') and holds(steers, 'list', 'DEL')
    and holds(sessions, 'zset', 'ZREM') and holds(owned, 'zset', 'ZREM')) then
  return redis.error_reply('ERR delete_session: wrong arguments, keys or permissions')
end
local state = redis.call('HGET', session, 'state')
if state == 'running' or state == 'awaiting' then return { 'busy' } end
for _, key in ipairs({ session, events, history, steers }) do redis.call('DEL', key) end
redis.call('ZREM', sessions, listed)
redis.call('ZREM', owned, listed)
return { state and 'deleted' or 'missing' }
