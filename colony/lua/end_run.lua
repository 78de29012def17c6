#!lua flags=allow-oom
-- end_run: end a run from outside, whatever it has under way, with its result.
--
-- KEYS
--   1   trace      record of the trace
--   2   open       traces that have not ended
--   3   ended      traces that have ended
--   4   deadlines  traces by deadline
--   5   quiet      stream of traces with no live envelope
--   6   run        record of the run
--   7   session    record of its session
--   8   events     of the session
--   9   history    of the session
--   10  steers     of the session
--   11  asks       asks of the run, and the envelopes that wait for them
--   12  pending    pending asks by deadline
-- ARGV
--   1   run_id       id of the run, which is that of its trace
--   2   session_id   id of its session
--   3   cause        cancelled or failed
--   4   reason       code that says why; empty for that of its dead letter, if it has one
--   5   disposition  whether another try may help
--   6   interrupted  what stands for the result of a call that is under way
--   7   channel      of the session
--   8   only         quiet where it is ended only if nothing of it is under way; or empty
-- RETURNS
--   ended          now; what it had parked is dropped, all else is fenced
--   before <cause> it had ended before; nothing is written
--   stale          it is not quiet any more; nothing is written
--   unknown        there is no such run; nothing is written
-- REPEATS
--   safe: the first end stands, and a repeat is told its cause
local trace, open, ended, deadlines, quiet = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local run, session, events, history, steers = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local asks, pending, id, session_id, cause = KEYS[11], KEYS[12], ARGV[1], ARGV[2], ARGV[3]
local reason, disposition, interrupted, channel = ARGV[4], ARGV[5], ARGV[6], ARGV[7]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
local sound = #ARGV == 8 and (cause == 'cancelled' or cause == 'failed')
    and holds(trace, 'hash', 'HSET') and holds(open, 'zset', 'ZREM')
    and holds(ended, 'zset', 'ZADD') and holds(deadlines, 'zset', 'ZREM')
    and holds(quiet, 'stream', 'XADD') and holds(run, 'hash', 'HSET', 'HMGET', 'HINCRBY')
    and holds(session, 'hash', 'HSET', 'PEXPIRE') and holds(events, 'stream', 'XADD', 'PEXPIRE')
    and holds(history, 'list', 'PEXPIRE') and holds(steers, 'list', 'LRANGE', 'DEL')
    and holds(asks, 'hash', 'HGETALL') and holds(pending, 'zset', 'ZREM')
    and redis.acl_check_cmd('PUBLISH', channel, '')
local record = sound and redis.call('HMGET', trace, 'state', 'cause', 'live', 'steps',
  'agent_session', 'error_code')
local kept = sound and redis.call('HMGET', run, 'open_calls', 'turn', 'text', 'progress',
  'input_tokens', 'output_tokens', 'cost_micro', 'turns', 'tool_calls', 'seq', 'keep_ms')
local function number(text) return tonumber(text or 0) end
local function is_number(text) return string.match(text or '0', '^%-?%d+$') ~= nil end
sound = sound and is_number(record[3] or nil) and is_number(record[4] or nil)
    and is_number(kept[10] or nil) and is_number(kept[11] or nil)
if not sound then
  return redis.error_reply('ERR end_run: wrong arguments, keys or permissions')
end
if not record[1] or record[5] ~= session_id then return { 'unknown' } end
if record[1] == 'ended' then return { 'before', record[2] } end
local idle = record[1] == 'quiet' and tonumber(record[3]) == 0
if ARGV[8] == 'quiet' and not idle then return { 'stale' } end
if reason == '' then reason = record[6] or 'stalled' end

local turn, asked, open_groups = kept[2] or '-1', {}, 0
local flat = redis.call('HGETALL', asks)
local by_name = {}
for n = 1, #flat, 2 do by_name[flat[n]] = flat[n + 1] end
for name, value in pairs(by_name) do
  if string.match(name, '^group:.*:open$') and number(value) > 0 then
    open_groups = open_groups + 1
  elseif string.match(name, '^[%x-]+$') and not by_name[name .. ':decision'] then
    asked[#asked + 1] = name
  end
end
table.sort(asked)
local owed = cjson.decode(kept[1] and kept[1] ~= '' and kept[1] or '[]')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local live = number(record[3]) - open_groups
redis.call('HSET', trace, 'state', 'ended', 'cause', cause, 'reason', reason, 'ended_at', now,
  'live', live, 'steps', number(record[4]) + 1)
redis.call('ZREM', open, id)
redis.call('ZREM', deadlines, id)
redis.call('ZADD', ended, now, id)

local function write(kind, payload)
  local text = cjson.encode(payload)
  local seq = redis.call('HINCRBY', run, 'seq', 1)
  local at = redis.call('XADD', events, '*', 'run', id, 'seq', seq, 'kind', kind, 'turn', turn,
    'payload', text)
  redis.call('PUBLISH', channel, cmsgpack.pack({ at, id, tostring(seq), kind, turn, text }))
end
for _, call in ipairs(owed) do
  write('tool.result', { call_id = call[1], name = call[2], content = interrupted,
    is_error = true })
end
for _, ask in ipairs(asked) do
  write('permission.retract', { ask_id = ask })
  redis.call('ZREM', pending, session_id .. ' ' .. id .. ' ' .. ask)
end
local stop = cause == 'cancelled' and 'cancelled' or 'error'
local progress = kept[4] or 'unknown'
local result = { stop = stop, state = cause, text = kept[3] or '',
  error = cause == 'failed' and reason or '', turns = number(kept[8]),
  tool_calls = number(kept[9]), retry_disposition = disposition, stream_progress = progress,
  usage = { input_tokens = number(kept[5]), output_tokens = number(kept[6]),
    cost_micro = number(kept[7]) } }
local dropped = redis.call('LRANGE', steers, 0, -1)
if #dropped > 0 then
  result.dropped_steers = dropped
  redis.call('DEL', steers)
end
write('result', result)
redis.call('HSET', run, 'state', cause, 'pending', 0, 'open_calls', '')
redis.call('HSET', session, 'state', cause, 'stop', stop, 'error', result.error, 'pending', 0,
  'disposition', disposition, 'progress', progress, 'retry_pending', '', 'updated_at', now)
local keep_ms = number(kept[11])
if keep_ms > 0 then
  for _, key in ipairs({ session, events, history }) do redis.call('PEXPIRE', key, keep_ms) end
end
if live == 0 then redis.call('XADD', quiet, '*', 'trace', id) end
return { 'ended' }
