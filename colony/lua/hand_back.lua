#!lua flags=allow-oom
-- hand_back: let anybody take up at once what a consumer holds and will not finish.
--
-- KEYS
--   1   source    stream the delivery was read from
--   2   attempts  handles begun and their tokens, by envelope
--   3   repairs   counts of what was found broken
-- ARGV
--   1   group     consumer group that reads the source
--   2   consumer  name of the holder
--   3   entry     entry id of the delivery
--   4   idle_ms   how long it is to look idle
--   5   envelope  id of the envelope
--   6   token     of the handle that was begun and broken off, or empty
-- RETURNS
--   returned      it may be reclaimed; neither delivery nor attempt counts
--   lost          it is settled, or somebody else holds it, or it was deleted; only that is counted
-- REPEATS
--   safe: what was taken up in between is lost; else its delivery may count once less
local source, attempts, repairs = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, entry, idle_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local envelope, token = ARGV[5], ARGV[6]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 6 or not idle_ms or not string.match(entry, '^%d+%-%d+$')
    or not (holds(source, 'stream', 'XCLAIM') and holds(attempts, 'hash', 'HSET')
    and holds(repairs, 'hash', 'HINCRBY')) then
  return redis.error_reply('ERR hand_back: wrong arguments, keys or permissions')
end
local found = false
if redis.call('EXISTS', source) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', source)) do
    found = found or info[2] == group
  end
end
local held = found and redis.call('XPENDING', source, group, entry, entry, 1, consumer) or {}
if #held == 0 then
  return { 'lost' }
end
local count, last = string.match(redis.call('HGET', attempts, envelope) or '', '^(%d+) (.*)$')
local kept = redis.call('XCLAIM', source, group, consumer, 0, entry, 'IDLE', idle_ms,
  'RETRYCOUNT', math.max(held[1][4] - 1, 0), 'JUSTID')
if #kept == 0 then
  redis.call('HINCRBY', repairs, 'entries_lost', 1)
  return { 'lost' }
end
if token ~= '' and last == token then
  redis.call('HSET', attempts, envelope, (tonumber(count) - 1) .. ' ')
end
return { 'returned' }
