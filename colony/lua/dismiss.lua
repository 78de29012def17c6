#!lua flags=allow-oom
-- dismiss: settle reports of quiet traces that were attended to.
--
-- KEYS
--   1   quiet    stream of traces with no live envelope
-- ARGV
--   1   group    consumer group that reads it
--   2+  entries  entry ids of the reports
-- RETURNS
--   dismissed    they are off the stream
-- REPEATS
--   safe: a report that is dismissed is not there
local quiet, group = KEYS[1], ARGV[1]

local kind = redis.call('TYPE', quiet).ok
local sound = #ARGV > 1 and (kind == 'stream' or kind == 'none')
    and redis.acl_check_cmd('XACK', quiet) and redis.acl_check_cmd('XDEL', quiet)
for n = 2, #ARGV do
  sound = sound and string.match(ARGV[n], '^%d+%-%d+$')
end
if not sound then
  return redis.error_reply('ERR dismiss: wrong arguments, keys or permissions')
end
for n = 2, #ARGV do
  redis.call('XACK', quiet, group, ARGV[n])
  redis.call('XDEL', quiet, ARGV[n])
end
return { 'dismissed' }
