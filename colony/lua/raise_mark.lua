#!lua flags=allow-oom
-- raise_mark: let a source pass over what comes to nothing.
--
-- KEYS
--   1   marks     of the source, by name
-- ARGV
--   1   name      of the mark
--   2   mark      that is reached
--   3   after     the mark it builds on; empty where any lower one will do
-- RETURNS
--   raised        the mark is reached
--   passed <mark> the mark is another one than `after`, or as high; nothing is written
-- REPEATS
--   safe: a mark that is reached is passed from then on
local marks, name, mark, after = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]

local kind = redis.call('TYPE', marks).ok
if #ARGV ~= 3 or not mark or mark < 0 or mark >= 2 ^ 53 or not (after == '' or tonumber(after))
    or not redis.acl_check_cmd('HSET', marks) or not (kind == 'hash' or kind == 'none') then
  return redis.error_reply('ERR raise_mark: wrong arguments, keys or permissions')
end
local reached = tonumber(redis.call('HGET', marks, 'mark:' .. name) or -1) or -1
if reached >= mark or (after ~= '' and reached ~= tonumber(after)) then
  return { 'passed', string.format('%.0f', reached) }
end
redis.call('HSET', marks, 'mark:' .. name, string.format('%.0f', mark))
return { 'raised' }
