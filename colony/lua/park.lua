#!lua flags=allow-oom
-- park: keep an envelope until its trace is the oldest of its session, unless it is.
--
-- KEYS
--   1   source    stream the envelope was read from
--   2   trace     record of its trace
--   3   order     traces of the session by their place in it
--   4   parked    envelopes that wait for the turn of their trace, by trace
--   5   waiting   sessions by how many of their traces wait
--   6   repairs   counts of what was found broken
-- ARGV
--   1   group     consumer group that reads the source
--   2   entry     entry id of the envelope
--   3   trace_id  id of its trace
--   4   session   whose order it keeps
--   5   head      of the envelope
--   6   body      of the envelope
-- RETURNS
--   turn          it may go on: no older trace of the session is open, or it waits for none
--   parked        settled; it is published again when it is the turn of its trace
--   stale         settled before, or deleted meanwhile; that is counted, nothing else is written
-- REPEATS
--   safe: a settled entry cannot be settled again, and a place once had is kept
local source, trace, order, parked = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local waiting, repairs, group, entry, id = KEYS[5], KEYS[6], ARGV[1], ARGV[2], ARGV[3]
local session, head, body = ARGV[4], ARGV[5], ARGV[6]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = #ARGV == 6 and session ~= '' and string.match(entry, '^%d+%-%d+$')
    and holds(source, 'stream', 'XACK', 'XDEL', 'XRANGE')
    and holds(trace, 'hash', 'HSET', 'HINCRBY') and holds(order, 'zset', 'ZADD', 'ZRANGE')
    and holds(parked, 'hash', 'HGET', 'HSET')
    and holds(waiting, 'zset', 'ZINCRBY') and holds(repairs, 'hash', 'HINCRBY')
local record = sound and redis.call('HMGET', trace, 'state', 'session', 'steps')
if not sound or not tonumber(record[3] or 0) then
  return redis.error_reply('ERR park: wrong arguments, keys or permissions')
end
-- A commit decides what becomes of an envelope whose trace ended or is gone.
local own = record[2] or ''
if not record[1] or record[1] == 'ended' or (own ~= '' and own ~= session) then
  return { 'turn' }
end
local kept = redis.call('HGET', parked, id)
local envelopes = kept and cmsgpack.unpack(kept) or {}
if #redis.call('XRANGE', source, entry, entry) == 1 and not redis.call('ZSCORE', order, id) then
  local last = redis.call('ZRANGE', order, -1, -1, 'WITHSCORES')
  redis.call('HSET', trace, 'session', session)
  redis.call('ZADD', order, (last[2] or 0) + 1, id)
end
if redis.call('ZRANGE', order, 0, 0)[1] == id then
  return { 'turn' }
end
local pending = redis.call('XACK', source, group, entry) == 1
if redis.call('XDEL', source, entry) == 0 then
  redis.call('HINCRBY', repairs, pending and 'entries_lost' or 'stale_commits', 1)
  return { 'stale' }
end
envelopes[#envelopes + 1] = { head, body }
redis.call('HSET', parked, id, cmsgpack.pack(envelopes))
redis.call('HINCRBY', trace, 'steps', 1)
if not kept then
  redis.call('ZINCRBY', waiting, 1, session)
end
return { 'parked' }
