#!lua flags=allow-oom
-- store_insert: add a row to a table unless one of its unique keys is taken.
--
-- KEYS
--   1   trace        record of the trace that asks
--   2   receipts     receipts of the trace's store operations
--   3   catalogue    definitions of the store's tables
--   4   cells        values of the table, by row and column
--   5   index        rows in order, and rows by column and value: one lexical set
--   6   unique       rows by unique key
-- ARGV
--   1   operation    envelope and ordinal of the operation
--   2   digest       of the operation
--   3   name         of the table
--   4   definition   of the table, as the caller knows it
--   5   packed       text of each value, by column
-- RETURNS
--   inserted 1       the row is added
--   taken <n>        the nth unique key is taken; only the receipt is written
--   unmade           the table is defined otherwise, or not at all; nothing is written
--   receipt_conflict the operation was done with other content; nothing is written
--   fenced           the trace takes no more work, or is gone; nothing is written
-- REPEATS
--   safe: the receipt gives the first answer
local trace, receipts, catalogue = KEYS[1], KEYS[2], KEYS[3]
local cells, index, unique = KEYS[4], KEYS[5], KEYS[6]
local operation, digest, name, definition = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local function holds(key, kind, command)
  if command and not redis.acl_check_cmd(command, key) then return false end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 5 or not (holds(trace, 'hash') and holds(catalogue, 'hash')
    and holds(receipts, 'hash', 'HSET') and holds(unique, 'hash', 'HSET')
    and holds(cells, 'hash', 'HSET') and holds(index, 'zset', 'ZADD')) then
  return redis.error_reply('ERR store_insert: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'cause', 'live')
if not record[1] or (record[1] == 'ended' and (record[2] ~= 'completed' or record[3] == '0')) then
  return { 'fenced' }
end
local receipt = redis.call('HGET', receipts, operation)
if receipt then
  local first, token, count = string.match(receipt, '^(%S+) (%S+) (%S+)$')
  if first ~= digest then return { 'receipt_conflict' } end
  return { token, count }
end
if redis.call('HGET', catalogue, name) ~= definition then return { 'unmade' } end

local defined, row, claims = cmsgpack.unpack(definition), cmsgpack.unpack(ARGV[5]), {}
local function claim(n, columns)
  local key = tostring(n)
  for _, column in ipairs(columns) do
    local value = row[column]
    if not value then return nil end
    key = key .. ':' .. #value .. ':' .. value
  end
  return key
end
local function entry(column, value, id)
  -- A long value is found by its hash: what is found is compared in full anyway.
  if #value > 40 then value = redis.sha1hex(value) end
  return column .. '\0' .. value .. '\0' .. id
end
local function answer(given)
  local token, count = given[1], tostring(given[2])
  redis.call('HSET', receipts, operation, digest .. ' ' .. token .. ' ' .. count)
  return { token, count }
end

local now = redis.call('TIME')
for n, columns in ipairs(defined.unique) do
  local key = claim(n, columns)
  if key and redis.call('HEXISTS', unique, key) == 1 then return answer({ 'taken', n }) end
  claims[#claims + 1] = key
end
local id = string.format('%016d', tonumber(redis.call('HGET', cells, 'seq') or '0') + 1)
redis.call('HSET', cells, 'seq', id)
redis.call('HSET', cells, id .. ':', now[1] .. string.format('%03d', math.floor(now[2] / 1000)))
redis.call('ZADD', index, 0, '\0\0' .. id)
for column, value in pairs(row) do redis.call('HSET', cells, id .. ':' .. column, value) end
for _, column in ipairs(defined.index) do
  if row[column] then redis.call('ZADD', index, 0, entry(column, row[column], id)) end
end
for _, key in ipairs(claims) do redis.call('HSET', unique, key, id) end
return answer({ 'inserted', 1 })
