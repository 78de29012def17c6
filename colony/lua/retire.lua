#!lua flags=allow-oom
-- retire: set the retention on everything an ended trace without live envelopes left behind.
--
-- KEYS
--   1   trace    record of the trace
--   2+  keys     all else of it: log, outputs, receipts, journal, attempts, requests, blobs, state
-- ARGV
--   1   keep_ms  how long all of it is kept
-- RETURNS
--   retired      everything expires, at the latest after the retention
--   living       the trace has not ended, or envelopes are under way; nothing is written
--   gone         there is no such trace; nothing is written
-- REPEATS
--   safe: what expires already keeps its time
local trace, keep_ms = KEYS[1], tonumber(ARGV[1])

local kind = redis.call('TYPE', trace).ok
if not keep_ms or not (kind == 'hash' or kind == 'none')
    or not redis.acl_check_cmd('PEXPIRE', trace) then
  return redis.error_reply('ERR retire: wrong arguments, keys or permissions')
end
if kind == 'none' then
  return { 'gone' }
end
local record = redis.call('HMGET', trace, 'state', 'live')
if record[1] ~= 'ended' or (tonumber(record[2]) or 0) > 0 then
  return { 'living' }
end
redis.call('PEXPIRE', trace, keep_ms, 'NX')
for n = 2, #KEYS do
  redis.call('PEXPIRE', KEYS[n], keep_ms, 'NX')
end
return { 'retired' }
