#!lua flags=allow-oom
-- file_asks: settle a delivery of a run by parking it until everything it asks is answered.
--
-- KEYS
--   1   source     stream the delivery was read from
--   2   trace      record of the trace
--   3   quiet      stream of traces with no live envelope
--   4   repairs    counts of what was found broken
--   5   run        record of the run
--   6   session    record of its session
--   7   events     of the session
--   8   history    of the session
--   9   steers     of the session
--   10  asks       asks of the run, and the envelopes that wait for them
--   11  deadlines  pending asks by deadline
-- ARGV
--   1   group      consumer group that reads the source
--   2   entry      entry id of the delivery
--   3   trace_id   id of the trace
--   4   changes    what changes in the run
--   5   parked     id of the envelope that waits
--   6   envelope   the envelope that waits: stream, head, body
--   7   asked      the asks: id, facts, deadline; and the member that each is among the deadlines
-- RETURNS
--   asked <n>      settled; n asks of the run are pending
--   stale          settled before, or deleted meanwhile; that is counted, nothing else is written
--   fenced         the trace takes no more work, or is gone; settled, the rest dropped
--   done           its run has had this step before; settled, the rest dropped
-- REPEATS
--   safe: a settled entry cannot be settled again
local source, trace, quiet, repairs, asks, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[10],
  KEYS[11]
local run = { run = KEYS[5], session = KEYS[6], events = KEYS[7], history = KEYS[8],
  steers = KEYS[9] }
local group, entry, id, parked = ARGV[1], ARGV[2], ARGV[3], ARGV[5]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = #ARGV == 7 and #KEYS == 11 and string.match(entry, '^%d+%-%d+$')
    and holds(source, 'stream', 'XACK', 'XDEL') and holds(trace, 'hash', 'HSET')
    and holds(quiet, 'stream', 'XADD') and holds(repairs, 'hash', 'HINCRBY')
    and holds(run.run, 'hash', 'HSET', 'HINCRBY') and holds(run.session, 'hash', 'HSET', 'HINCRBY')
    and holds(run.events, 'stream', 'XADD') and holds(run.history, 'list', 'RPUSH')
    and holds(run.steers, 'list', 'LPOP') and holds(asks, 'hash', 'HSET', 'HINCRBY')
    and holds(deadlines, 'zset', 'ZADD')
local changes, asked = sound and cmsgpack.unpack(ARGV[4]), sound and cmsgpack.unpack(ARGV[7])
sound = sound and redis.acl_check_cmd('PUBLISH', changes.channel, '')
local record = sound and redis.call('HMGET', trace, 'state', 'cause', 'live', 'steps')
local function is_number(text) return string.match(text or '0', '^%-?%d+$') ~= nil end
sound = sound and is_number(record[3] or '0') and is_number(record[4] or '0')
for _, count in ipairs(sound and changes.counts or {}) do
  local counted = run[count[1]]
  sound = sound and is_number(redis.call('HGET', counted, count[2]) or '0')
end
if not sound then
  return redis.error_reply('ERR file_asks: wrong arguments, keys or permissions')
end

local pending = redis.call('XACK', source, group, entry) == 1
if redis.call('XDEL', source, entry) == 0 then
  redis.call('HINCRBY', repairs, pending and 'entries_lost' or 'stale_commits', 1)
  return { 'stale' }
end
local once, open = changes.once, record[1] == 'open'
local done = once[1] and redis.call('HGET', run.run, once[1]) == once[2]
if done or not open then
  local live = tonumber(record[3] or 0) - 1
  if record[1] and live >= 0 then
    redis.call('HSET', trace, 'live', live, 'steps', tonumber(record[4] or 0) + 1)
    if live == 0 and open then redis.call('HSET', trace, 'state', 'quiet') end
    if live == 0 then redis.call('XADD', quiet, '*', 'trace', id) end
  end
  return { open and 'done' or 'fenced' }
end
for _, field in ipairs(changes.fields) do
  local record = run[field[1]]
  redis.call('HSET', record, field[2], field[3])
end
for _, count in ipairs(changes.counts) do
  local record = run[count[1]]
  redis.call('HINCRBY', record, count[2], count[3])
end
for _, row in ipairs(changes.rows) do redis.call('RPUSH', run.history, row) end
if changes.steers > 0 then redis.call('LPOP', run.steers, changes.steers) end
for _, event in ipairs(changes.events) do
  local seq = event[4] == 1 and redis.call('HINCRBY', run.run, 'seq', 1) or 0
  local at = event[4] == 1 and redis.call('XADD', run.events, '*', 'run', id, 'seq', seq,
    'kind', event[1], 'turn', event[2], 'payload', event[3]) or ''
  redis.call('PUBLISH', changes.channel,
    cmsgpack.pack({ at, id, tostring(seq), event[1], event[2], event[3] }))
end
for _, ask in ipairs(asked) do
  redis.call('HSET', asks, ask[1], ask[2])
  redis.call('ZADD', deadlines, ask[3], ask[4])
end
redis.call('HSET', asks, 'group:' .. parked .. ':open', #asked,
  'group:' .. parked .. ':parked', ARGV[6])
redis.call('HINCRBY', run.session, 'pending', #asked)
redis.call('HSET', run.session, 'state', 'awaiting')
redis.call('HSET', trace, 'steps', tonumber(record[4] or 0) + 1)
return { 'asked', redis.call('HINCRBY', run.run, 'pending', #asked) }
