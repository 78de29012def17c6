#!lua flags=allow-oom
-- write_off: settle entries that were deleted while somebody held them, and count them as lost.
--
-- KEYS
--   1   source    stream the entries were read from
--   2   repairs   counts of what was found broken
-- ARGV
--   1   group     consumer group that reads the source
--   2+  entries   entry ids
-- RETURNS
--   written_off <entries>  those that were pending and not there
-- REPEATS
--   safe: what is not pending any more is not counted again
local source, repairs, group = KEYS[1], KEYS[2], ARGV[1]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = #ARGV > 1 and holds(source, 'stream', 'XACK', 'XRANGE')
    and holds(repairs, 'hash', 'HINCRBY')
for n = 2, #ARGV do
  sound = sound and string.match(ARGV[n], '^%d+%-%d+$')
end
if not sound then
  return redis.error_reply('ERR write_off: wrong arguments, keys or permissions')
end
local lost = {}
for n = 2, #ARGV do
  if #redis.call('XRANGE', source, ARGV[n], ARGV[n]) == 0
      and redis.call('XACK', source, group, ARGV[n]) == 1 then
    lost[#lost + 1] = ARGV[n]
  end
end
if #lost > 0 then
  redis.call('HINCRBY', repairs, 'entries_lost', #lost)
end
return { 'written_off', lost }
