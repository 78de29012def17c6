#!lua flags=allow-oom
-- store_update: set columns of the rows that match, all of them or none.
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
--   5   conditions   which rows
--   6   assigned     text by column, and which column becomes NULL
-- RETURNS
--   changed <n>      n rows matched and have the values
--   taken <n>        the nth unique key would be taken twice; only the receipt is written
--   unmade           the table is defined otherwise, or not at all; nothing is written
--   receipt_conflict the operation was done with other content; nothing is written
--   fenced           the trace takes no more work, or is gone; nothing is written
-- REPEATS
--   safe: the receipt gives the first answer
local trace, receipts, catalogue = KEYS[1], KEYS[2], KEYS[3]
local cells, index, unique = KEYS[4], KEYS[5], KEYS[6]
local operation, digest, name, definition = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local function holds(key, kind, ...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, key) then return false end
  end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 6 or not (holds(trace, 'hash') and holds(catalogue, 'hash')
    and holds(receipts, 'hash', 'HSET') and holds(unique, 'hash', 'HDEL', 'HSET')
    and holds(cells, 'hash', 'HGET', 'HDEL', 'HSET') and holds(index, 'zset', 'ZREM', 'ZADD')) then
  return redis.error_reply('ERR store_update: wrong arguments, keys or permissions')
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

local defined, where = cmsgpack.unpack(definition), cmsgpack.unpack(ARGV[5])
local given, assigned = cmsgpack.unpack(ARGV[6]), {}
for column, value in pairs(given.row) do assigned[column] = value end
for _, column in ipairs(given.null) do assigned[column] = false end
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

-- where: the rows that meet every condition, in order (alike in every script that takes one)
local function sign(a, b)
  -- Byte by byte, because `<` follows the locale of the server.
  if a == b then return '=' end
  for n = 1, #a do
    local x, y = string.byte(a, n), string.byte(b, n)
    if x ~= y then return (y and x < y) and '<' or '>' end
  end
  return '<'
end
local function meets(id, condition)
  local column = condition.column
  local value = column == '?seq' and id or redis.call('HGET', cells, id .. ':' .. column)
  if not value then return condition.or_null end
  for _, operand in ipairs(condition.operands) do
    if string.find(condition.accepts, sign(value, operand), 1, true) then return true end
  end
  return false
end
local function matching(limit)
  local ranges, least = where.scan, math.huge
  for _, condition in ipairs(where.conditions) do
    local size = condition.ranges and 0 or math.huge
    for _, range in ipairs(condition.ranges or {}) do
      size = size + redis.call('ZLEXCOUNT', index, range[1], range[2])
    end
    if size < least then ranges, least = condition.ranges, size end
  end
  local most = (#where.conditions == 0 and limit > 0) and limit or -1
  local ids, met = {}, {}
  for _, range in ipairs(ranges) do
    local found = redis.call('ZRANGEBYLEX', index, range[1], range[2], 'LIMIT', 0, most)
    for _, member in ipairs(found) do ids[#ids + 1] = string.sub(member, -16) end
  end
  if ranges ~= where.scan then table.sort(ids) end
  for n, id in ipairs(ids) do
    local all = id ~= ids[n - 1]
    for _, condition in ipairs(where.conditions) do all = all and meets(id, condition) end
    if all then met[#met + 1] = id end
    if limit > 0 and #met == limit then break end
  end
  return met
end
-- end of where

local function claims(id, n, columns)
  local old, new = tostring(n), tostring(n)
  for _, column in ipairs(columns) do
    local value = redis.call('HGET', cells, id .. ':' .. column)
    local given = assigned[column]
    if given == nil then given = value end
    old = old and value and old .. ':' .. #value .. ':' .. value
    new = new and given and new .. ':' .. #given .. ':' .. given
  end
  return old, new
end

local ids, moves, claimed = matching(0), {}, {}
for n, columns in ipairs(defined.unique) do
  local touched = false
  for _, column in ipairs(columns) do touched = touched or assigned[column] ~= nil end
  for _, id in ipairs(touched and ids or {}) do
    local old, new = claims(id, n, columns)
    if new and new ~= old then
      claimed[new] = claimed[new] or redis.call('HEXISTS', unique, new) == 1
      if claimed[new] then return answer({ 'taken', n }) end
      claimed[new] = true
    end
    if new ~= old then moves[#moves + 1] = { id = id, old = old, new = new } end
  end
end
for _, move in ipairs(moves) do
  if move.old then redis.call('HDEL', unique, move.old) end
  if move.new then redis.call('HSET', unique, move.new, move.id) end
end
local indexed = {}
for _, column in ipairs(defined.index) do indexed[column] = true end
for _, id in ipairs(ids) do
  for column, value in pairs(assigned) do
    local field = id .. ':' .. column
    local before = indexed[column] and redis.call('HGET', cells, field)
    if before then redis.call('ZREM', index, entry(column, before, id)) end
    if not value then
      redis.call('HDEL', cells, field)
    else
      redis.call('HSET', cells, field, value)
      if indexed[column] then redis.call('ZADD', index, 0, entry(column, value, id)) end
    end
  end
end
return answer({ 'changed', #ids })
