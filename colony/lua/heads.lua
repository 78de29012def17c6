#!lua flags=no-writes
-- heads: the heads of a page of envelopes, without the bodies.
--
-- KEYS
--   1   source   stream of the envelopes
-- ARGV
--   1   start    first entry, as XRANGE takes it
--   2   last     last entry, as XRANGE takes it
--   3   count    how many entries at most
-- RETURNS
--   page <heads>  id and head of each entry, alternating; a head that is missing is empty
-- REPEATS
--   safe: nothing is written
local source, start, last, count = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

local kind = redis.call('TYPE', source).ok
if #ARGV ~= 3 or not count or not (kind == 'stream' or kind == 'none') then
  return redis.error_reply('ERR heads: wrong arguments, keys or permissions')
end
local heads = {}
for _, entry in ipairs(redis.call('XRANGE', source, start, last, 'COUNT', count)) do
  local fields, head = entry[2], ''
  for n = 1, #fields, 2 do
    if fields[n] == 'head' then head = fields[n + 1] end
  end
  heads[#heads + 1] = entry[1]
  heads[#heads + 1] = head
end
return { 'page', heads }
