#!lua flags=allow-oom
-- store_make: define a table that is missing, with its first rows, or add columns to one.
--
-- KEYS
--   1   trace        record of the trace that asks
--   2   catalogue    definitions of the store's tables
--   3   cells        values of the table, by row and column
--   4   index        rows in order, and rows by column and value: one lexical set
--   5   unique       rows by unique key
-- ARGV
--   1   name         of the table
--   2   before       its definition as the caller knows it; empty where there is none
--   3   definition   of the table from now on
--   4   packed       rows of a new table: text of each value, by column
-- RETURNS
--   made             the table is defined so
--   changed          somebody else defined it meanwhile; nothing is written
--   taken <n>        two of the rows share the nth unique key; nothing is written
--   fenced           the trace takes no more work, or is gone; nothing is written
-- REPEATS
--   safe: a definition is replaced once
local trace, catalogue, cells, index, unique = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local name, before, definition = ARGV[1], ARGV[2], ARGV[3]

local function holds(key, kind, command)
  if command and not redis.acl_check_cmd(command, key) then return false end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 4 or not (holds(trace, 'hash') and holds(catalogue, 'hash', 'HSET')
    and holds(unique, 'hash', 'HSET') and holds(cells, 'hash', 'HSET')
    and holds(index, 'zset', 'ZADD')) then
  return redis.error_reply('ERR store_make: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'cause', 'live')
if not record[1] or (record[1] == 'ended' and (record[2] ~= 'completed' or record[3] == '0')) then
  return { 'fenced' }
end
local defined, rows, claims = cmsgpack.unpack(definition), cmsgpack.unpack(ARGV[4]), {}
local current = redis.call('HGET', catalogue, name) or ''
if current == definition then return { 'made' } end
if current ~= before then return { 'changed' } end

local function entry(column, value, id)
  -- A long value is found by its hash: what is found is compared in full anyway.
  if #value > 40 then value = redis.sha1hex(value) end
  return column .. '\0' .. value .. '\0' .. id
end
for number, row in ipairs(rows) do
  for n, columns in ipairs(defined.unique) do
    local key = tostring(n)
    for _, column in ipairs(columns) do
      local value = row[column]
      key = key and value and key .. ':' .. #value .. ':' .. value
    end
    if key and claims[key] then return { 'taken', tostring(n) } end
    if key then claims[key] = string.format('%016d', number) end
  end
end
local now = redis.call('TIME')
redis.call('HSET', catalogue, name, definition)
for number, row in ipairs(rows) do
  local id = string.format('%016d', number)
  redis.call('HSET', cells, 'seq', id)
  redis.call('HSET', cells, id .. ':', now[1] .. string.format('%03d', math.floor(now[2] / 1000)))
  redis.call('ZADD', index, 0, '\0\0' .. id)
  for column, value in pairs(row) do redis.call('HSET', cells, id .. ':' .. column, value) end
  for _, column in ipairs(defined.index) do
    if row[column] then redis.call('ZADD', index, 0, entry(column, row[column], id)) end
  end
end
for key, id in pairs(claims) do redis.call('HSET', unique, key, id) end
return { 'made' }
