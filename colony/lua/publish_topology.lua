#!lua
-- publish_topology: make a tree the newest version of the topology.
--
-- KEYS
--   1   topology     version, digest and document
-- ARGV
--   1   expected     version it is meant to follow
--   2   digest       of the tree
--   3   document     the tree
-- RETURNS
--   published <n>    it is version n
--   unchanged <n>    version n has the same digest; nothing is written
--   conflict <n>     the newest version is n, not the expected one; nothing is written
-- REPEATS
--   safe: the repeat finds its own digest
local topology, expected, digest, document = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3]

local kind = redis.call('TYPE', topology).ok
if expected == nil or #ARGV ~= 3 or (kind ~= 'hash' and kind ~= 'none') then
  return redis.error_reply('ERR publish_topology: wrong arguments, keys or permissions')
end
local newest = redis.call('HMGET', topology, 'version', 'digest')
local version = tonumber(newest[1] or '0')
if newest[2] == digest then
  return { 'unchanged', version }
end
if version ~= expected then
  return { 'conflict', version }
end
redis.call('HSET', topology, 'version', version + 1, 'digest', digest, 'document', document)
return { 'published', version + 1 }
