#!lua flags=allow-oom
-- renew: keep deliveries in hand from being reclaimed, as far as they are still held.
--
-- KEYS
--   1   slots          leases of the holder's role
--   2   source         stream the deliveries were read from
--   3   repairs        counts of what was found broken
-- ARGV
--   1   slot           of the holder
--   2   token          of the holder
--   3   group          consumer group that reads the source
--   4   consumer       name of the holder
--   5+  entries        entry ids of the deliveries
-- RETURNS
--   renewed <entries>  those that are still held; their idle time starts anew
--   lost               the slot has another holder; nothing is written
-- REPEATS
--   safe: an idle time starts anew
local slots, source, repairs = KEYS[1], KEYS[2], KEYS[3]
local slot, token, group, consumer = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local function holds(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = #ARGV > 4 and holds(source, 'stream') and holds(slots, 'hash')
    and holds(repairs, 'hash') and redis.acl_check_cmd('HINCRBY', repairs)
for n = 5, #ARGV do
  sound = sound and string.match(ARGV[n], '^%d+%-%d+$')
end
if not sound then
  return redis.error_reply('ERR renew: wrong arguments, keys or permissions')
end
local lease = redis.call('HGET', slots, slot)
if not lease or string.sub(lease, 1, #token + 1) ~= token .. ' ' then
  return { 'lost' }
end
local found, held = false, {}
if redis.call('EXISTS', source) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', source)) do
    found = found or info[2] == group
  end
end
for n = 5, found and #ARGV or 0 do
  -- An XCLAIM that did not look first would take the entry back from whoever reclaimed it.
  if #redis.call('XPENDING', source, group, ARGV[n], ARGV[n], 1, consumer) == 1 then
    if #redis.call('XCLAIM', source, group, consumer, 0, ARGV[n], 'JUSTID') == 1 then
      held[#held + 1] = ARGV[n]
    else
      -- Deleted under its holder: nothing is pending any more that a reclaim would find.
      redis.call('HINCRBY', repairs, 'entries_lost', 1)
    end
  end
end
return { 'renewed', held }
