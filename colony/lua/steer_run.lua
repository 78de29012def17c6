#!lua flags=allow-oom
-- steer_run: keep what a person says to a run under way until its next boundary.
--
-- KEYS
--   1   session    record of the session
--   2   steers     what no turn has taken up yet
-- ARGV
--   1   run_id     id of the run that is meant, or empty for whichever is under way
--   2   text       what is said
--   3   token      of this saying; the same again is kept once
-- RETURNS
--   accepted <run>  the run takes it up at its next boundary, or was told before
--   stale           another run is under way, or none; nothing is written
--   missing         there is no such session; nothing is written
-- REPEATS
--   safe: the newest 64 tokens are remembered
local session, steers, run_id, text, token = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local REMEMBERED = 64

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 3 or not (holds(session, 'hash', 'HSET') and holds(steers, 'list', 'RPUSH')) then
  return redis.error_reply('ERR steer_run: wrong arguments, keys or permissions')
end
local found = redis.call('HMGET', session, 'state', 'run_id', 'steer_tokens')
if not found[1] then return { 'missing' } end
-- Others may have said something since: what was kept is told again, whatever came after it.
local kept = cjson.decode(found[3] or '[]')
for _, before in ipairs(kept) do
  if before[1] == token then return { 'accepted', before[2] } end
end
local live = found[1] == 'running' or found[1] == 'awaiting'
if not live or (run_id ~= '' and found[2] ~= run_id) then return { 'stale' } end
redis.call('RPUSH', steers, text)
kept[#kept + 1] = { token, found[2] }
if #kept > REMEMBERED then table.remove(kept, 1) end
redis.call('HSET', session, 'steer_tokens', cjson.encode(kept))
return { 'accepted', found[2] }
