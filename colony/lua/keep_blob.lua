#!lua flags=allow-oom
-- keep_blob: write a blob that expires unless a commit refers to it.
--
-- KEYS
--   1   blob     where its content is kept
-- ARGV
--   1   content  of the blob
--   2   keep_ms  how long it waits for a commit
-- RETURNS
--   kept         it is there for at least that long
-- REPEATS
--   safe: the content is the same, and what a commit said of its expiry stands
local blob, content, keep_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])

local kind = redis.call('TYPE', blob).ok
if #ARGV ~= 2 or not keep_ms or (kind ~= 'string' and kind ~= 'none') then
  return redis.error_reply('ERR keep_blob: wrong arguments, keys or permissions')
end
if kind == 'none' then
  redis.call('SET', blob, content, 'PX', keep_ms)
else
  redis.call('PEXPIRE', blob, keep_ms, 'GT')
end
return { 'kept' }
