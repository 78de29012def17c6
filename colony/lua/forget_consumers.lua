#!lua flags=allow-oom
-- forget_consumers: forget the names of processes that are gone and hold nothing.
--
-- KEYS
--   1   source    stream whose consumers are looked at
--   2   repairs   counts of what was found broken
--   3+  slots     leases of each role
-- ARGV
--   1   group     consumer group that reads the source
--   2   idle_ms   how long a name must have been unused
--   3+  roles     role of each `slots`
-- RETURNS
--   forgotten <n>  n names are forgotten; none of them held an entry or had a lease
-- REPEATS
--   safe: what is forgotten is not found again
local source, repairs, group, idle_ms = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = idle_ms and #KEYS > 2 and #ARGV == #KEYS and holds(source, 'stream')
    and redis.acl_check_cmd('XGROUP', 'DELCONSUMER', source, group, 'a')
    and holds(repairs, 'hash', 'HINCRBY')
for n = 3, #KEYS do sound = sound and holds(KEYS[n], 'hash', 'HGET') end
if not sound then
  return redis.error_reply('ERR forget_consumers: wrong arguments, keys or permissions')
end
local slots, read, forgotten = {}, false, 0
for n = 3, #KEYS do slots[ARGV[n]] = KEYS[n] end
if redis.call('EXISTS', source) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', source)) do
    read = read or info[2] == group
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function leased(name)
  local role, slot = string.match(name, '^(.*)%-(%d+)$')
  local leases = slots[role]
  local lease = leases and redis.call('HGET', leases, slot)
  local ends = lease and string.match(lease, '^%S+ (%d+) ')
  return ends and tonumber(ends) > now
end
for _, info in ipairs(read and redis.call('XINFO', 'CONSUMERS', source, group) or {}) do
  local name, pending, idle = info[2], info[4], info[6]
  if pending == 0 and idle > idle_ms and not leased(name) then
    redis.call('XGROUP', 'DELCONSUMER', source, group, name)
    forgotten = forgotten + 1
  end
end
if forgotten > 0 then
  redis.call('HINCRBY', repairs, 'consumers_forgotten', forgotten)
end
return { 'forgotten', forgotten }
