#!lua flags=allow-oom
-- announce: keep the tools that a cell has learned, for every worker to offer.
--
-- KEYS
--   1   announced      tools by path, and the number of the newest announcement
-- ARGV
--   1   path           of the cell
--   2   tools          what it offers from now on, all of it
-- RETURNS
--   announced <n>      it is announcement n
--   unchanged <n>      the cell announced the same before; nothing is written
-- REPEATS
--   safe: the repeat finds what it announced
local announced, path, tools = KEYS[1], ARGV[1], ARGV[2]

local kind = redis.call('TYPE', announced).ok
if #ARGV ~= 2 or (kind ~= 'hash' and kind ~= 'none') then
  return redis.error_reply('ERR announce: wrong arguments, keys or permissions')
end
local before = redis.call('HMGET', announced, 'version', path)
local version = tonumber(before[1] or '0')
if before[2] == tools then
  return { 'unchanged', version }
end
redis.call('HSET', announced, 'version', version + 1, path, tools)
return { 'announced', version + 1 }
