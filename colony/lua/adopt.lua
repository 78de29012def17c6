#!lua flags=allow-oom
-- adopt: let entries that were delivered, and that nobody holds any more, be reclaimed.
--
-- KEYS
--   1   source    stream to look at
--   2   repairs   counts of what was found broken
-- ARGV
--   1   group     consumer group that reads the source
--   2   consumer  name that holds them until they are reclaimed; no process has it
--   3   start     where to look from, as XRANGE takes it
--   4   count     how many entries are looked at most
--   5   idle_ms   how long they are to look idle
-- RETURNS
--   adopted <n> <last>  n orphans are pending now; last is the entry the look ended at, or empty
--                       where everything that was delivered has been looked at
--   no_group      nobody reads the source; nothing is written
-- REPEATS
--   safe: what somebody holds is no orphan
local source, repairs, group, consumer = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local start, count, idle_ms = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 5 or not count or not idle_ms
    or not (start == '-' or string.match(start, '^%(%d+%-%d+$'))
    or not (holds(source, 'stream', 'XCLAIM', 'XPENDING', 'XRANGE')
    and holds(repairs, 'hash', 'HINCRBY')) then
  return redis.error_reply('ERR adopt: wrong arguments, keys or permissions')
end
local delivered
if redis.call('EXISTS', source) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', source)) do
    if info[2] == group then delivered = info[8] end
  end
end
if not delivered then
  return { 'no_group' }
end
-- Whatever lies behind the last delivery is new, however much it is.
local page = redis.call('XRANGE', source, start, delivered, 'COUNT', count)
local adopted = 0
for _, entry in ipairs(page) do
  if #redis.call('XPENDING', source, group, entry[1], entry[1], 1) == 0 then
    redis.call('XCLAIM', source, group, consumer, 0, entry[1], 'IDLE', idle_ms, 'RETRYCOUNT', 1,
      'FORCE', 'JUSTID')
    adopted = adopted + 1
  end
end
if adopted > 0 then
  redis.call('HINCRBY', repairs, 'orphans_adopted', adopted)
end
return { 'adopted', adopted, #page == count and page[#page][1] or '' }
