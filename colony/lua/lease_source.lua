#!lua flags=allow-oom
-- lease_source: lease a source, or renew the lease of its holder.
--
-- KEYS
--   1   lease     token of the holder; it expires with the lease
-- ARGV
--   1   token     of who asks
--   2   lease_ms  how long the lease is good
-- RETURNS
--   held          the source is held from now on until the lease ends
--   taken         somebody else holds it; nothing is written
-- REPEATS
--   safe: a holder keeps what it has
local lease, token, lease_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])

local kind = redis.call('TYPE', lease).ok
if #ARGV ~= 2 or not lease_ms or lease_ms < 1 or not redis.acl_check_cmd('SET', lease)
    or not (kind == 'string' or kind == 'none') then
  return redis.error_reply('ERR lease_source: wrong arguments, keys or permissions')
end
local holder = redis.call('GET', lease)
if holder and holder ~= token then
  return { 'taken' }
end
redis.call('SET', lease, token, 'PX', lease_ms)
return { 'held' }
