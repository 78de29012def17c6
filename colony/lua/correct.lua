#!lua flags=allow-oom
-- correct: take envelopes that are lost off the count of their trace, with a dead letter for each.
--
-- KEYS
--   1   trace     record of the trace
--   2   quiet     stream of traces with no live envelope
--   3   dead      dead letters
--   4   repairs   counts of what was found broken
-- ARGV
--   1   trace_id  id of the trace
--   2   steps     how many steps the trace had taken before its envelopes were searched for
--   3   live      how many envelopes it counted then
--   4   found     how many of them there are
--   5   code      why the others died
--   6   facts     of the letters
--   7   head      of the last envelope that is known of, for its context; may be empty
--   8   empty     what a letter keeps in place of a head and a body
-- RETURNS
--   corrected <n>  the trace has n live envelopes, all of which are there
--   moved         it took a step meanwhile, or is gone; nothing is written
-- REPEATS
--   safe: a correction is a step
local trace, quiet, dead, repairs = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, steps, live, found = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local code, facts, head, empty = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local kept = redis.call('TYPE', key).ok
  return kept == kind or kept == 'none'
end
if #ARGV ~= 8 or not tonumber(steps) or not live or not found or found >= live
    or not (holds(trace, 'hash', 'HSET', 'HINCRBY') and holds(quiet, 'stream', 'XADD')
    and holds(dead, 'stream', 'XADD') and holds(repairs, 'hash', 'HINCRBY')) then
  return redis.error_reply('ERR correct: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'live', 'steps')
if not record[1] or tonumber(record[2]) ~= live or (record[3] or '0') ~= steps then
  return { 'moved' }
end
redis.call('HSET', trace, 'live', found)
redis.call('HINCRBY', trace, 'steps', 1)
redis.call('HINCRBY', repairs, 'traces_corrected', 1)
if record[1] ~= 'ended' then
  for _ = 1, live - found do
    redis.call('XADD', dead, '*', 'trace', id, 'code', code, 'target', '', 'message', '', 'facts',
      facts, 'head', empty, 'body', empty)
  end
  redis.call('HINCRBY', trace, 'dead', live - found)
  redis.call('HSET', trace, 'error_code', code, 'dead_target', '', 'dead_message_id', '',
    'dead_head', head)
end
if found == 0 then
  if record[1] == 'open' then redis.call('HSET', trace, 'state', 'quiet') end
  redis.call('XADD', quiet, '*', 'trace', id)
end
return { 'corrected', found }
