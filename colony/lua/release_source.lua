#!lua flags=allow-oom
-- release_source: give a source back, so that the next who asks holds it at once.
--
-- KEYS
--   1   lease     token of the holder
-- ARGV
--   1   token     of who gives it back
-- RETURNS
--   released      nobody holds it now
--   stale         somebody else holds it, or nobody does; nothing is written
-- REPEATS
--   safe: what is given back is held by somebody else, or by nobody
local lease, token = KEYS[1], ARGV[1]

local kind = redis.call('TYPE', lease).ok
if #ARGV ~= 1 or not redis.acl_check_cmd('DEL', lease)
    or not (kind == 'string' or kind == 'none') then
  return redis.error_reply('ERR release_source: wrong arguments, keys or permissions')
end
if redis.call('GET', lease) ~= token then
  return { 'stale' }
end
redis.call('DEL', lease)
return { 'released' }
