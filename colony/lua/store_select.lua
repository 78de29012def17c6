#!lua flags=no-writes
-- store_select: read columns of the rows that match, in the order they were added.
--
-- KEYS
--   1   catalogue    definitions of the store's tables
--   2   cells        values of the table, by row and column
--   3   index        rows in order, and rows by column and value: one lexical set
-- ARGV
--   1   name         of the table
--   2   definition   of the table, as the caller knows it
--   3   conditions   which rows
--   4   columns      what to read of each row; nothing is read where there are none
--   5   limit        how many rows at most; 0 for all
-- RETURNS
--   rows <n>         n rows matched; then the number of each and its values
--   unmade           the table is defined otherwise, or not at all
-- REPEATS
--   safe: it only reads
local catalogue, cells, index = KEYS[1], KEYS[2], KEYS[3]
local where, columns = cmsgpack.unpack(ARGV[3]), cmsgpack.unpack(ARGV[4])
local limit = tonumber(ARGV[5])
if not limit then return redis.error_reply('ERR store_select: wrong arguments') end
if redis.call('HGET', catalogue, ARGV[1]) ~= ARGV[2] then return { 'unmade' } end

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

local ids = matching(limit)
local answer = { 'rows', #ids }
for _, id in ipairs(#columns > 0 and ids or {}) do
  answer[#answer + 1] = id
  for _, column in ipairs(columns) do
    answer[#answer + 1] = redis.call('HGET', cells, id .. ':' .. column)
  end
end
return answer
