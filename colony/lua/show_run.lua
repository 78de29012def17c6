#!lua flags=allow-oom
-- show_run: record that something of a run is visible from now on.
--
-- KEYS
--   1   trace     record of the trace
--   2   journal   what handlers of the trace recorded
--   3   run       record of the run
-- ARGV
--   1   field     envelope and name that it is recorded under
-- RETURNS
--   shown         whoever handles the envelope again finds it recorded
--   fenced        the trace takes no more work, or is gone; nothing is written
-- REPEATS
--   safe: what is visible stays so
local trace, journal, run, field = KEYS[1], KEYS[2], KEYS[3], ARGV[1]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 1 or not (holds(trace, 'hash') and holds(journal, 'hash', 'HSET')
    and holds(run, 'hash', 'HSET')) then
  return redis.error_reply('ERR show_run: wrong arguments, keys or permissions')
end
if redis.call('HGET', trace, 'state') ~= 'open' then return { 'fenced' } end
redis.call('HSET', journal, field, '')
redis.call('HSET', run, 'progress', 'visible')
return { 'shown' }
