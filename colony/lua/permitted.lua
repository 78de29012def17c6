#!lua flags=no-writes
-- permitted: which commands the user of this connection may not give on a key.
--
-- KEYS
--   1   key       one of a colony's
-- ARGV
--   1+  commands  their names, subcommands behind a blank
-- RETURNS
--   permitted <refused>  those that are refused, as a list
-- REPEATS
--   safe: nothing is written
local key, refused = KEYS[1], {}
if key == nil or #ARGV == 0 then
  return redis.error_reply('ERR permitted: wrong arguments, keys or permissions')
end
for n = 1, #ARGV do
  local name, below = string.match(ARGV[n], '^(%S+) ?(%S*)$')
  local permitted = below == '' and redis.acl_check_cmd(name, key)
    or below ~= '' and redis.acl_check_cmd(name, below, key)
  if not permitted then refused[#refused + 1] = ARGV[n] end
end
return { 'permitted', refused }
