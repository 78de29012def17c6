#!lua flags=allow-oom
-- release_slot: give a slot back before its lease ends.
--
-- KEYS
--   1   slots     leases of the role, by slot
-- ARGV
--   1   slot      to give back
--   2   token     of the holder
-- RETURNS
--   released      the slot is free
--   lost          somebody else holds it; nothing is written
-- REPEATS
--   safe: a slot that was given back is lost
local slots, slot, token = KEYS[1], ARGV[1], ARGV[2]

local kind = redis.call('TYPE', slots).ok
if #ARGV ~= 2 or (kind ~= 'hash' and kind ~= 'none') then
  return redis.error_reply('ERR release_slot: wrong arguments, keys or permissions')
end
local lease = redis.call('HGET', slots, slot)
if not lease or string.sub(lease, 1, #token + 1) ~= token .. ' ' then
  return { 'lost' }
end
redis.call('HDEL', slots, slot)
return { 'released' }
