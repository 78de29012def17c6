#!lua flags=allow-oom
-- keep_blob: write a blob, or the next piece of one, that expires unless a commit refers to it.
--
-- KEYS
--   1   blob     where its content is kept
-- ARGV
--   1   content  of the blob, or a piece of it
--   2   keep_ms  how long it waits for a commit
--   3   offset   where the piece begins; 0 where it is the first, or all of it
-- RETURNS
--   kept         it is there for at least that long
--   gone         what comes before the piece is not there; nothing is written
-- REPEATS
--   safe: the content is the same, and what a commit said of its expiry stands
local blob, content = KEYS[1], ARGV[1]
local keep_ms, offset = tonumber(ARGV[2]), tonumber(ARGV[3])

local kind = redis.call('TYPE', blob).ok
local sound = #ARGV == 3 and keep_ms and offset and (kind == 'string' or kind == 'none')
for _, command in ipairs({ 'SET', 'SETRANGE', 'PEXPIRE' }) do
  sound = sound and redis.acl_check_cmd(command, blob)
end
if not sound then
  return redis.error_reply('ERR keep_blob: wrong arguments, keys or permissions')
end
local size = redis.call('STRLEN', blob)
if size < offset then
  return { 'gone' }
end
if kind == 'none' then
  redis.call('SET', blob, content, 'PX', keep_ms)
  return { 'kept' }
end
if size < offset + #content then
  redis.call('SETRANGE', blob, offset, content)
end
redis.call('PEXPIRE', blob, keep_ms, 'GT')
return { 'kept' }
