#!lua
-- replay: send a dead letter again, into its own trace while that is open, else as a new one.
--
-- KEYS
--   1   replays      first answer of every replay
--   2   trace        record of the letter's trace
--   3   fresh        record of the trace that is opened where the letter's own has ended
--   4   open         traces that have not ended
--   5   stream       where the envelope goes
-- ARGV
--   1   letter       id of the dead letter
--   2   trace_id     id of the letter's trace
--   3   fresh_id     id of the trace that is opened
--   4   entry        target of the envelope
--   5   head         for the letter's own trace
--   6   fresh_head   for the trace that is opened
--   7   body         of the envelope
-- RETURNS
--   replayed <id>    it is under way in trace <id>
--   repeated <id>    replayed before into trace <id>; nothing is written
-- REPEATS
--   safe: the first answer is remembered
local replays, trace, fresh, open, stream = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local letter, trace_id, fresh_id, entry = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local head, fresh_head, body = ARGV[5], ARGV[6], ARGV[7]

local function holds(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 7 or not (holds(replays, 'hash') and holds(trace, 'hash') and holds(fresh, 'hash')
    and holds(open, 'zset') and holds(stream, 'stream')) then
  return redis.error_reply('ERR replay: wrong arguments, or a key holds something else')
end
local before = redis.call('HGET', replays, letter)
if before then
  return { 'repeated', before }
end
local record = redis.call('HMGET', trace, 'state', 'live')
local living = (record[1] == 'open' or record[1] == 'quiet') and tonumber(record[2]) ~= nil
local id = living and trace_id or fresh_id
redis.call('HSET', replays, letter, id)
if living then
  redis.call('HSET', trace, 'state', 'open')
  redis.call('HINCRBY', trace, 'live', 1)
else
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('HSET', fresh, 'state', 'open', 'live', 1, 'created_at', now, 'entry', entry,
    'session', '', 'replayed_from', letter, 'outputs', 0, 'dead', 0, 'revivals', 0)
  redis.call('ZADD', open, now, fresh_id)
end
redis.call('XADD', stream, '*', 'head', living and head or fresh_head, 'body', body)
return { 'replayed', id }
