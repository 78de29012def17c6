#!lua flags=allow-oom
-- retire: set the retention on everything an ended trace without live envelopes left behind.
--
-- KEYS
--   1   trace    record of the trace
--   2   ended    traces that have ended
--   3+  keys     what else belongs to it: log, outputs, receipts, journal, attempts, blobs, state
-- ARGV
--   1   keep_ms  how long all of it is kept
-- RETURNS
--   retired      everything expires after the retention
--   living       the trace has not ended, or envelopes are under way; nothing is written
-- REPEATS
--   safe: the retention starts anew
local trace, ended, keep_ms = KEYS[1], KEYS[2], tonumber(ARGV[1])

local kind = redis.call('TYPE', ended).ok
local record_kind = redis.call('TYPE', trace).ok
local sound = keep_ms and (kind == 'zset' or kind == 'none')
    and (record_kind == 'hash' or record_kind == 'none')
if not (sound and redis.acl_check_cmd('PEXPIRE', trace)
    and redis.acl_check_cmd('ZREMRANGEBYSCORE', ended)) then
  return redis.error_reply('ERR retire: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'live')
if record[1] ~= 'ended' or record[2] ~= '0' then
  return { 'living' }
end
local time = redis.call('TIME')
redis.call('PEXPIRE', trace, keep_ms)
for n = 3, #KEYS do
  redis.call('PEXPIRE', KEYS[n], keep_ms)
end
redis.call('ZREMRANGEBYSCORE', ended, '-inf', time[1] * 1000 - keep_ms)
return { 'retired' }
