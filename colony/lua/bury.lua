#!lua flags=allow-oom
-- bury: settle a delivery whose head cannot be read, and keep its bytes as a dead letter.
--
-- KEYS
--   1   source   stream the delivery was read from
--   2   dead     dead letters
--   3   repairs  counts of what was found broken
-- ARGV
--   1   group   consumer group that reads the source
--   2   entry   entry id of the delivery
--   3   code    why
--   4   target  whom the source belongs to
--   5   facts   of the letter
--   6   head    bytes that should have been a head
--   7   body    bytes that should have been a body
-- RETURNS
--   buried      settled; the letter is written
--   stale       settled before, or deleted meanwhile; that is counted, nothing else is written
-- REPEATS
--   safe: a settled entry cannot be settled again
local source, dead, repairs, group, entry = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local code, target, facts, head, body = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 7 or not string.match(entry, '^%d+%-%d+$')
    or not (holds(source, 'stream', 'XACK', 'XDEL') and holds(dead, 'stream', 'XADD')
    and holds(repairs, 'hash', 'HINCRBY')) then
  return redis.error_reply('ERR bury: wrong arguments, keys or permissions')
end
local pending = redis.call('XACK', source, group, entry) == 1
if redis.call('XDEL', source, entry) == 0 then
  redis.call('HINCRBY', repairs, pending and 'entries_lost' or 'stale_commits', 1)
  return { 'stale' }
end
redis.call('HINCRBY', repairs, 'entries_broken', 1)
redis.call('XADD', dead, '*', 'trace', '', 'code', code, 'target', target, 'message', '',
  'facts', facts, 'head', head, 'body', body)
return { 'buried' }
