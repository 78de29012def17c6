#!lua flags=allow-oom
-- bury: settle a delivery whose head cannot be read, and keep its bytes as a dead letter.
--
-- KEYS
--   1   source  stream the delivery was read from
--   2   dead    dead letters
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
--   stale       settled before; nothing is written
-- REPEATS
--   safe: a settled entry cannot be settled again
local source, dead, group, entry = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local code, target, facts, head, body = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local function stream(name)
  local found = redis.call('TYPE', name).ok
  return found == 'stream' or found == 'none'
end
if #ARGV ~= 7 or not string.match(entry, '^%d+%-%d+$') or not (stream(source) and stream(dead)) then
  return redis.error_reply('ERR bury: wrong arguments, or a key holds something else')
end
redis.call('XACK', source, group, entry)
if redis.call('XDEL', source, entry) == 0 then
  return { 'stale' }
end
redis.call('XADD', dead, '*', 'trace', '', 'code', code, 'target', target, 'message', '',
  'facts', facts, 'head', head, 'body', body)
return { 'buried' }
