#!lua flags=allow-oom
-- record_request: keep what a model is sent, each piece of it once.
--
-- KEYS
--   1   trace        record of the trace
--   2   requests     requests of the trace by name, and how often each was sent again
--   3   said         pieces of the requests of the trace, by digest
-- ARGV
--   1   name         envelope and digest of the request
--   2   facts        who sent it, and the digests of its pieces in order
--   3+  pieces       digest and bytes of each piece, alternating
-- RETURNS
--   recorded <n>     it is kept, and was sent n times
--   fenced           the trace takes no more work, or is gone; nothing is written
-- REPEATS
--   counts once more: whoever asks again sends again; what is kept of the request stays the same
local trace, requests, said = KEYS[1], KEYS[2], KEYS[3]
local name, facts = ARGV[1], ARGV[2]

local function holds(key, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == 'hash' or found == 'none'
end
if #ARGV < 4 or #ARGV % 2 == 1
    or not (holds(trace) and holds(requests, 'HSETNX', 'HINCRBY') and holds(said, 'HSETNX')) then
  return redis.error_reply('ERR record_request: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'cause', 'live')
if not record[1] or (record[1] == 'ended' and (record[2] ~= 'completed' or record[3] == '0')) then
  return { 'fenced' }
end
local time = redis.call('TIME')
local at = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
-- Every request adds a field, so no two have the same number.
local number = redis.call('HLEN', requests)
if redis.call('HSETNX', requests, name, number .. ' ' .. at .. ' ' .. facts) == 0 then
  return { 'recorded', redis.call('HINCRBY', requests, '#' .. name, 1) + 1 }
end
for n = 3, #ARGV, 2 do
  redis.call('HSETNX', said, ARGV[n], ARGV[n + 1])
end
return { 'recorded', 1 }
