#!lua flags=allow-oom
-- record_request: keep what a model is sent, behind the request before it.
--
-- KEYS
--   1   trace        record of the trace
--   2   requests     requests of the trace by name; the newest of each thread, by '>' and thread;
--                    and how often each was sent again, by '#' and name
-- ARGV
--   1   name         envelope and digest of the request
--   2   facts        who sent it, and what of it the one before does not hold
--   3   thread       that the request belongs to
--   4   before       name of the one before in its thread; empty for the first
-- RETURNS
--   recorded <n>     it is kept, and was sent n times
--   behind           the newest of the thread is another one; nothing is written
--   fenced           the trace takes no more work, or is gone; nothing is written
-- REPEATS
--   counts once more: whoever asks again sends again; what is kept of the request stays the same
local trace, requests = KEYS[1], KEYS[2]
local name, facts, thread, before = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local function holds(key, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == 'hash' or found == 'none'
end
if #ARGV ~= 4 or not (holds(trace) and holds(requests, 'HSET', 'HINCRBY')) then
  return redis.error_reply('ERR record_request: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'cause', 'live')
if not record[1] or (record[1] == 'ended' and (record[2] ~= 'completed' or record[3] == '0')) then
  return { 'fenced' }
end
if redis.call('HEXISTS', requests, name) == 1 then
  return { 'recorded', redis.call('HINCRBY', requests, '#' .. name, 1) + 1 }
end
if (redis.call('HGET', requests, '>' .. thread) or '') ~= before then
  return { 'behind' }
end
local time = redis.call('TIME')
local at = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
-- Every request adds a field, so no two have the same number.
local number = redis.call('HLEN', requests)
redis.call('HSET', requests, name, number .. ' ' .. at .. ' ' .. facts, '>' .. thread, name)
return { 'recorded', 1 }
