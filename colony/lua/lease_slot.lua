#!lua flags=allow-oom
-- lease_slot: lease the lowest free slot of a role, or renew the lease of a holder.
--
-- KEYS
--   1   slots     leases of the role, by slot
-- ARGV
--   1   token     of the holder
--   2   lease_ms  how long the lease is good
--   3   about     what the holder tells of itself
-- RETURNS
--   leased <n>    slot n is held from now on until the lease ends
--   renewed <n>   slot n was held before, and is held until the new lease ends
-- REPEATS
--   safe: a holder keeps the slot it has
local slots, token, lease_ms, about = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]

local kind = redis.call('TYPE', slots).ok
if lease_ms == nil or #ARGV ~= 3 or string.find(token, ' ') or (kind ~= 'hash' and kind ~= 'none') then
  return redis.error_reply('ERR lease_slot: wrong arguments, keys or permissions')
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local taken, own = {}, nil
local leases = redis.call('HGETALL', slots)
for n = 1, #leases, 2 do
  local holder, ends = string.match(leases[n + 1], '^(%S+) (%d+) ')
  if holder == token then
    own = tonumber(leases[n])
  elseif ends and tonumber(ends) > now then
    taken[leases[n]] = true
  end
end
local slot = own or 0
while not own and taken[tostring(slot)] do
  slot = slot + 1
end
redis.call('HSET', slots, slot, string.format('%s %.0f %s', token, now + lease_ms, about))
return { own and 'renewed' or 'leased', slot }
