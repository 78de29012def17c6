#!lua flags=allow-oom
-- reclaim: take pending entries that were idle too long, and write off those that are gone.
--
-- KEYS
--   1   source    stream whose entries are taken
--   2   repairs   counts of what was found broken
-- ARGV
--   1   group     consumer group that reads the source
--   2   consumer  who takes them
--   3   idle_ms   how long nobody may have renewed them
--   4   cursor    where the last look ended, or 0-0
--   5   count     how many are taken at most
-- RETURNS
--   reclaimed <cursor> <entries> <lost>  where this look ended; id, fields and number of deliveries
--                                        of what was taken; ids of what was deleted meanwhile
--   no_group      nobody reads the source; nothing is written
-- REPEATS
--   a repeat goes on with what is idle by then; nothing is counted twice
local source, repairs, group, consumer = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local idle_ms, cursor, count = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 5 or not idle_ms or not count or not string.match(cursor or '', '^%d+%-%d+$')
    or not (holds(source, 'stream', 'XAUTOCLAIM', 'XPENDING')
    and holds(repairs, 'hash', 'HINCRBY')) then
  return redis.error_reply('ERR reclaim: wrong arguments, keys or permissions')
end
local found = false
if redis.call('EXISTS', source) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', source)) do
    found = found or info[2] == group
  end
end
if not found then
  return { 'no_group' }
end
local reply = redis.call('XAUTOCLAIM', source, group, consumer, idle_ms, cursor, 'COUNT', count)
local entries = {}
for n, entry in ipairs(reply[2]) do
  local pending = redis.call('XPENDING', source, group, entry[1], entry[1], 1)
  entries[n] = { entry[1], entry[2], pending[1][4] }
end
if #reply[3] > 0 then
  redis.call('HINCRBY', repairs, 'entries_lost', #reply[3])
end
return { 'reclaimed', reply[1], entries, reply[3] }
