#!lua flags=allow-oom
-- attempt: count that a redelivered envelope is about to be handled again.
--
-- KEYS
--   1   trace     record of the trace
--   2   attempts  handles begun, by envelope
-- ARGV
--   1   envelope  id of the envelope
-- RETURNS
--   begun <n>     for the n-th time since it was first redelivered
--   fenced        the trace ended cancelled or failed, or is gone; nothing is written
-- REPEATS
--   counts twice: an attempt too many is counted, never one too few
local trace, attempts, envelope = KEYS[1], KEYS[2], ARGV[1]

local function holds(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 1 or not (holds(trace, 'hash') and holds(attempts, 'hash')) then
  return redis.error_reply('ERR attempt: wrong arguments, or a key holds something else')
end
local record = redis.call('HMGET', trace, 'state', 'cause')
if not record[1] or (record[1] == 'ended' and record[2] ~= 'completed') then
  return { 'fenced' }
end
return { 'begun', redis.call('HINCRBY', attempts, envelope, 1) }
