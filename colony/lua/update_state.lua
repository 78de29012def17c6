#!lua flags=allow-oom
-- update_state: change the durable state of a cell, leaf by leaf.
--
-- KEYS
--   1   trace       record of the trace that asks
--   2   belongings  keys that are kept as long as the trace
--   3   state       leaves of the state, by path
-- ARGV
--   1   lasting     0 where the state ends with the trace, 1 where it outlives it
--   2   removed     how many of the leaves are removed; the others are put
--   3+  leaves      paths to remove, then path and text of each leaf to put
-- RETURNS
--   updated <all>   the leaves that result, path and text alternating
--   fenced          the trace takes no more work, or is gone; nothing is written
-- REPEATS
--   safe: the same leaves are removed and put
local trace, belongings, state = KEYS[1], KEYS[2], KEYS[3]
local lasting, removed = ARGV[1], tonumber(ARGV[2])

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if removed == nil or (#ARGV - 2 - removed) % 2 ~= 0 or #ARGV < 2 + removed
    or not (holds(trace, 'hash') and holds(belongings, 'set', 'SADD')
    and holds(state, 'hash', 'HDEL', 'HSET', 'EXISTS', 'HGETALL')) then
  return redis.error_reply('ERR update_state: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'cause', 'live')
if not record[1] or (record[1] == 'ended' and (record[2] ~= 'completed' or record[3] == '0')) then
  return { 'fenced' }
end
for n = 3, 2 + removed do
  redis.call('HDEL', state, ARGV[n])
end
for n = 3 + removed, #ARGV, 2 do
  redis.call('HSET', state, ARGV[n], ARGV[n + 1])
end
if lasting == '0' and redis.call('EXISTS', state) == 1 then
  redis.call('SADD', belongings, state)
end
return { 'updated', redis.call('HGETALL', state) }
