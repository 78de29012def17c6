#!lua flags=allow-oom
-- finish_run: settle a delivery of a run by ending it, unless somebody has steered it meanwhile.
--
-- KEYS
--   1   source     stream the delivery was read from
--   2   trace      record of the trace
--   3   open       traces that have not ended
--   4   ended      traces that have ended
--   5   deadlines  traces by deadline
--   6   quiet      stream of traces with no live envelope
--   7   repairs    counts of what was found broken
--   8   router     where the run goes on
--   9   run        record of the run
--   10  session    record of its session
--   11  events     of the session
--   12  history    of the session
--   13  steers     of the session
--   14  asks       asks of the run, and the envelopes that wait for them
--   15  pending    pending asks by deadline
-- ARGV
--   1   group      consumer group that reads the source
--   2   entry      entry id of the delivery
--   3   trace_id   id of the trace
--   4   changes    what changes in the run
--   5   state      completed or failed
--   6   result     what the result says, beside what is counted here
--   7   outputs    head and body of each envelope that goes on with the run
--   8   session_id  id of its session
-- RETURNS
--   ended <cause>  settled, and the run has ended with its result; what it had parked is dropped
--   steered <n>    settled, and the run goes on with n live envelopes
--   stale          settled before, or deleted meanwhile; that is counted, nothing else is written
--   fenced         the trace has ended or is gone; settled, the rest dropped
-- REPEATS
--   safe: a settled entry cannot be settled again
local source, trace, open, ended, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local quiet, repairs, router = KEYS[6], KEYS[7], KEYS[8]
local run = { run = KEYS[9], session = KEYS[10], events = KEYS[11], history = KEYS[12],
  steers = KEYS[13] }
local asks, asked_by = KEYS[14], KEYS[15]
local group, entry, id, state = ARGV[1], ARGV[2], ARGV[3], ARGV[5]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = #ARGV == 8 and #KEYS == 15 and string.match(entry, '^%d+%-%d+$')
    and (state == 'completed' or state == 'failed')
    and holds(source, 'stream', 'XACK', 'XDEL') and holds(trace, 'hash', 'HSET')
    and holds(open, 'zset', 'ZREM') and holds(ended, 'zset', 'ZADD')
    and holds(deadlines, 'zset', 'ZREM') and holds(quiet, 'stream', 'XADD')
    and holds(repairs, 'hash', 'HINCRBY') and holds(router, 'stream', 'XADD')
    and holds(run.run, 'hash', 'HSET', 'HINCRBY', 'HMGET')
    and holds(run.session, 'hash', 'HSET', 'HINCRBY', 'PEXPIRE')
    and holds(run.events, 'stream', 'XADD', 'PEXPIRE')
    and holds(run.history, 'list', 'RPUSH', 'PEXPIRE')
    and holds(run.steers, 'list', 'LLEN', 'LPOP', 'LRANGE', 'DEL')
    and holds(asks, 'hash', 'HGETALL') and holds(asked_by, 'zset', 'ZREM')
local changes, outputs = sound and cmsgpack.unpack(ARGV[4]), sound and cmsgpack.unpack(ARGV[7])
local result = sound and cjson.decode(ARGV[6])
sound = sound and redis.acl_check_cmd('PUBLISH', changes.channel, '')
local record = sound and redis.call('HMGET', trace, 'state', 'cause', 'live', 'steps')
local function is_number(text) return string.match(text, '^%-?%d+$') ~= nil end
sound = sound and is_number(record[3] or '0') and is_number(record[4] or '0')
for _, count in ipairs(sound and changes.counts or {}) do
  local counted = run[count[1]]
  sound = sound and is_number(redis.call('HGET', counted, count[2]) or '0')
end
if not sound then
  return redis.error_reply('ERR finish_run: wrong arguments, keys or permissions')
end

local pending = redis.call('XACK', source, group, entry) == 1
if redis.call('XDEL', source, entry) == 0 then
  redis.call('HINCRBY', repairs, pending and 'entries_lost' or 'stale_commits', 1)
  return { 'stale' }
end
local steered = state == 'completed' and redis.call('LLEN', run.steers) > 0
local going_on = record[1] == 'open' and steered
-- Whoever still waits for an answer is told that nobody wants it any more.
local waiting, asked, parked = {}, {}, 0
local flat = redis.call('HGETALL', asks)
for n = 1, #flat, 2 do waiting[flat[n]] = flat[n + 1] end
for name, value in pairs(record[1] == 'open' and not going_on and waiting or {}) do
  if string.match(name, '^group:.*:open$') and tonumber(value) > 0 then
    parked = parked + 1
  elseif string.match(name, '^[%x-]+$') and not waiting[name .. ':decision'] then
    asked[#asked + 1] = name
  end
end
table.sort(asked)
local live = tonumber(record[3] or 0) - 1 - parked + (going_on and #outputs or 0)
if record[1] and live >= 0 then
  redis.call('HSET', trace, 'live', live, 'steps', tonumber(record[4] or 0) + 1)
  if live == 0 then redis.call('XADD', quiet, '*', 'trace', id) end
end
if record[1] ~= 'open' then return { 'fenced' } end

local function tell(kind, turn, payload, durable)
  local seq = durable == 1 and redis.call('HINCRBY', run.run, 'seq', 1) or 0
  local at = durable == 1 and redis.call('XADD', run.events, '*', 'run', id, 'seq', seq,
    'kind', kind, 'turn', turn, 'payload', payload) or ''
  redis.call('PUBLISH', changes.channel,
    cmsgpack.pack({ at, id, tostring(seq), kind, turn, payload }))
end
local function change()
  for _, field in ipairs(changes.fields) do
    local record = run[field[1]]
    -- What the session is to be afterwards holds only where the run ends.
    if not going_on or field[1] == 'run' then
      redis.call('HSET', record, field[2], field[3])
    end
  end
  for _, count in ipairs(changes.counts) do
    local record = run[count[1]]
    redis.call('HINCRBY', record, count[2], count[3])
  end
  for _, row in ipairs(changes.rows) do redis.call('RPUSH', run.history, row) end
  if changes.steers > 0 then redis.call('LPOP', run.steers, changes.steers) end
  for _, event in ipairs(changes.events) do tell(event[1], event[2], event[3], event[4]) end
end
if going_on then
  change()
  for _, out in ipairs(outputs) do
    redis.call('XADD', router, '*', 'head', out[1], 'body', out[2])
  end
  return { 'steered', live }
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', trace, 'state', 'ended', 'cause', state, 'reason', result.error or '',
  'ended_at', now)
redis.call('ZREM', open, id)
redis.call('ZREM', deadlines, id)
redis.call('ZADD', ended, now, id)
redis.call('HSET', run.run, 'state', state)
redis.call('HSET', run.session, 'state', state, 'stop', result.stop, 'error', result.error or '',
  'disposition', result.retry_disposition, 'progress', result.stream_progress,
  'retry_pending', '', 'updated_at', now)
change()
for _, ask in ipairs(asked) do
  tell('permission.retract', changes.turn, cjson.encode({ ask_id = ask }), 1)
  redis.call('ZREM', asked_by, ARGV[8] .. ' ' .. id .. ' ' .. ask)
end
if #asked > 0 then
  redis.call('HSET', run.run, 'pending', 0)
  redis.call('HSET', run.session, 'pending', 0)
end
local counted = redis.call('HMGET', run.run, 'input_tokens', 'output_tokens', 'cost_micro',
  'turns', 'tool_calls', 'turn', 'keep_ms')
local function number(n) return tonumber(counted[n] or 0) or 0 end
result.usage = { input_tokens = number(1), output_tokens = number(2), cost_micro = number(3) }
result.state, result.turns, result.tool_calls = state, number(4), number(5)
local dropped = redis.call('LRANGE', run.steers, 0, -1)
if #dropped > 0 then
  result.dropped_steers = dropped
  redis.call('DEL', run.steers)
end
tell('result', counted[6] or '-1', cjson.encode(result), 1)
local keep_ms = number(7)
if keep_ms > 0 then
  for _, kept in ipairs({ run.session, run.events, run.history }) do
    redis.call('PEXPIRE', kept, keep_ms)
  end
end
return { 'ended', state }
