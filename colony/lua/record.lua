#!lua flags=allow-oom
-- record: keep the first value that a handler of an envelope gives a name.
--
-- KEYS
--   1   trace     record of the trace
--   2   journal   what handlers of the trace recorded
-- ARGV
--   1   field     envelope and name
--   2   value     what is kept
-- RETURNS
--   kept <value>  the first value given under this name, this one or an earlier one
--   fenced        the trace takes no more work, or is gone; nothing is written
-- REPEATS
--   safe: the first value stands
local trace, journal, field, value = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local function holds(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 2 or not (holds(trace, 'hash') and holds(journal, 'hash')) then
  return redis.error_reply('ERR record: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'cause', 'live')
if not record[1] or (record[1] == 'ended' and (record[2] ~= 'completed' or record[3] == '0')) then
  return { 'fenced' }
end
if redis.call('HSETNX', journal, field, value) == 1 then
  return { 'kept', value }
end
return { 'kept', redis.call('HGET', journal, field) }
