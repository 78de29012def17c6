#!lua
-- replay: send a dead letter again, into its own trace while that is open, else as a new one.
--
-- KEYS
--   1   first        first answer to a replay of the letter
--   2   trace        record of the letter's trace
--   3   fresh        record of the trace that is opened where the letter's own has ended
--   4   open         traces that have not ended
--   5   stream       where the envelope goes
--   6   order        traces of the session by their place in it
-- ARGV
--   1   letter       id of the dead letter
--   2   trace_id     id of the letter's trace
--   3   fresh_id     id of the trace that is opened
--   4   entry        target of the envelope
--   5   head         for the letter's own trace
--   6   fresh_head   for the trace that is opened
--   7   body         of the envelope
--   8   session      session of the trace that is opened, where it gets the last place; or empty
--   9   keep_ms      how long the first answer is remembered
-- RETURNS
--   replayed <id>    it is under way in trace <id>
--   repeated <id>    replayed before into trace <id>; nothing is written
-- REPEATS
--   safe: the first answer is remembered
local first, trace, fresh, open, stream = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local order, letter, trace_id, fresh_id, entry = KEYS[6], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local head, fresh_head, body = ARGV[5], ARGV[6], ARGV[7]
local session, keep_ms = ARGV[8], tonumber(ARGV[9])

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 9 or not keep_ms or not (holds(first, 'string', 'SET')
    and holds(trace, 'hash', 'HSET', 'HINCRBY') and holds(fresh, 'hash', 'HSET')
    and holds(open, 'zset', 'ZADD') and holds(stream, 'stream', 'XADD')
    and holds(order, 'zset', 'ZADD', 'ZRANGE')) then
  return redis.error_reply('ERR replay: wrong arguments, keys or permissions')
end
local before = redis.call('GET', first)
if before then
  return { 'repeated', before }
end
local record = redis.call('HMGET', trace, 'state', 'live', 'steps')
local living = (record[1] == 'open' or record[1] == 'quiet') and tonumber(record[2]) ~= nil
    and tonumber(record[3] or 0) ~= nil
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id = living and trace_id or fresh_id
redis.call('SET', first, id, 'PX', keep_ms)
if living then
  redis.call('HSET', trace, 'state', 'open')
  redis.call('HINCRBY', trace, 'live', 1)
  redis.call('HINCRBY', trace, 'steps', 1)
else
  redis.call('HSET', fresh, 'state', 'open', 'live', 1, 'created_at', now, 'entry', entry,
    'session', session, 'replayed_from', letter, 'outputs', 0, 'dead', 0, 'revivals', 0,
    'steps', 1)
  redis.call('ZADD', open, now, fresh_id)
  if session ~= '' then
    local last = redis.call('ZRANGE', order, -1, -1, 'WITHSCORES')
    redis.call('ZADD', order, (last[2] or 0) + 1, fresh_id)
  end
end
redis.call('XADD', stream, '*', 'head', living and head or fresh_head, 'body', body)
return { 'replayed', id }
