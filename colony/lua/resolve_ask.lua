#!lua flags=allow-oom
-- resolve_ask: answer an ask of a run; the last answer that an envelope waits for releases it.
--
-- KEYS
--   1   trace     record of the trace
--   2   run       record of the run
--   3   session   record of its session
--   4   events    of the session
--   5   asks      asks of the run, and the envelopes that wait for them
--   6   pending   pending asks by deadline
--   7   stream    where the envelope goes that waits
-- ARGV
--   1   run_id      id of the run
--   2   session_id  id of its session
--   3   ask_id      id of the ask
--   4   token       of this answer; the same again is told the same
--   5   decision    the answer as it is kept
--   6   kind        of the event: approval or permission.expired
--   7   payload     of the event
--   8   rule        that is learned for the session, or empty
--   9   channel     of the session
-- RETURNS
--   resolved <n>         the answer counts; n asks of the run are pending
--   repeated <decision>  it was answered by the same token before; nothing is written
--   not_pending          it was answered before, or never asked; nothing is written
--   stale                the run has ended, or is none of the session; nothing is written
-- REPEATS
--   safe: the token finds its own answer
local trace, run, session, events, asks = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local pending, stream, id, session_id, ask = KEYS[6], KEYS[7], ARGV[1], ARGV[2], ARGV[3]
local token, decision, kind, payload, rule = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local channel = ARGV[9]

local function holds(key, type, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == type or found == 'none'
end
local sound = #ARGV == 9 and holds(trace, 'hash') and holds(run, 'hash', 'HINCRBY')
    and holds(session, 'hash', 'HSET', 'HINCRBY') and holds(events, 'stream', 'XADD')
    and holds(asks, 'hash', 'HSET', 'HINCRBY') and holds(pending, 'zset', 'ZREM')
    and holds(stream, 'stream', 'XADD') and redis.acl_check_cmd('PUBLISH', channel, '')
local function is_number(text) return string.match(text or '0', '^%-?%d+$') ~= nil end
local counted = sound and redis.call('HMGET', run, 'pending', 'seq', 'turn')
local of_session = sound and redis.call('HMGET', session, 'pending', 'learned')
if not sound or not (is_number(counted[1] or '0') and is_number(counted[2] or '0')
    and is_number(of_session[1] or '0')) then
  return redis.error_reply('ERR resolve_ask: wrong arguments, keys or permissions')
end

local facts = redis.call('HMGET', asks, ask, ask .. ':decision', ask .. ':token')
if facts[2] and token ~= '' and facts[3] == token then return { 'repeated', facts[2] } end
local record = redis.call('HMGET', trace, 'state', 'agent_session')
if record[1] ~= 'open' or record[2] ~= session_id then return { 'stale' } end
if not facts[1] or facts[2] then return { 'not_pending' } end
local group = 'group:' .. cjson.decode(facts[1]).group
local waiting = redis.call('HMGET', asks, group .. ':open', group .. ':parked')
local parked = waiting[2] and cmsgpack.unpack(waiting[2])
if not parked or parked[1] ~= stream or not is_number(waiting[1]) then
  return redis.error_reply('ERR resolve_ask: nothing waits for the ask in this stream')
end
local learned = cjson.decode(of_session[2] and of_session[2] ~= '' and of_session[2] or '[]')

redis.call('HSET', asks, ask .. ':decision', decision, ask .. ':token', token)
redis.call('ZREM', pending, session_id .. ' ' .. id .. ' ' .. ask)
for _, known in ipairs(learned) do
  if known == rule then rule = '' end
end
if rule ~= '' then
  learned[#learned + 1] = rule
  redis.call('HSET', session, 'learned', cjson.encode(learned))
end
local seq, turn = redis.call('HINCRBY', run, 'seq', 1), counted[3] or '-1'
local at = redis.call('XADD', events, '*', 'run', id, 'seq', seq, 'kind', kind, 'turn', turn,
  'payload', payload)
redis.call('PUBLISH', channel, cmsgpack.pack({ at, id, tostring(seq), kind, turn, payload }))
redis.call('HINCRBY', session, 'pending', -1)
local left = redis.call('HINCRBY', run, 'pending', -1)
if left == 0 then redis.call('HSET', session, 'state', 'running') end
if redis.call('HINCRBY', asks, group .. ':open', -1) == 0 then
  redis.call('XADD', stream, '*', 'head', parked[2], 'body', parked[3])
end
return { 'resolved', left }
