#!lua flags=allow-oom
-- store_expire: remove the oldest rows of a table that keeps its rows for a limited time.
--
-- KEYS
--   1   cells        values of the table, by row and column
--   2   index        rows in order, and rows by column and value: one lexical set
--   3   unique       rows by unique key
-- ARGV
--   1   definition   of the table
--   2   retain_s     how many seconds a row is kept
--   3   most         how many rows may be removed in this step
-- RETURNS
--   expired <n>      n rows were too old and are gone
-- REPEATS
--   safe: a row is removed once
local cells, index, unique = KEYS[1], KEYS[2], KEYS[3]
local retain_s, most = tonumber(ARGV[2]), tonumber(ARGV[3])

local function holds(key, kind, command)
  if command and not redis.acl_check_cmd(command, key) then return false end
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
if #ARGV ~= 3 or not retain_s or not most or not (holds(cells, 'hash', 'HDEL')
    and holds(unique, 'hash', 'HDEL') and holds(index, 'zset', 'ZREM')) then
  return redis.error_reply('ERR store_expire: wrong arguments, keys or permissions')
end
local defined = cmsgpack.unpack(ARGV[1])
local function entry(column, value, id)
  -- A long value is found by its hash: what is found is compared in full anyway.
  if #value > 40 then value = redis.sha1hex(value) end
  return column .. '\0' .. value .. '\0' .. id
end
local function remove(id)
  local row = {}
  for _, column in ipairs(defined.columns) do
    row[column[1]] = redis.call('HGET', cells, id .. ':' .. column[1]) or nil
  end
  for n, columns in ipairs(defined.unique) do
    local key = tostring(n)
    for _, column in ipairs(columns) do
      local value = row[column]
      key = key and value and key .. ':' .. #value .. ':' .. value
    end
    if key then redis.call('HDEL', unique, key) end
  end
  for _, column in ipairs(defined.index) do
    if row[column] then redis.call('ZREM', index, entry(column, row[column], id)) end
  end
  for column in pairs(row) do redis.call('HDEL', cells, id .. ':' .. column) end
  redis.call('HDEL', cells, id .. ':')
  redis.call('ZREM', index, '\0\0' .. id)
end

local limit = (tonumber(redis.call('TIME')[1]) - retain_s) * 1000
local expired = 0
local oldest = redis.call('ZRANGEBYLEX', index, '(\0\0', '(\0\1', 'LIMIT', 0, most)
for _, member in ipairs(oldest) do
  local id = string.sub(member, -16)
  if tonumber(redis.call('HGET', cells, id .. ':') or '0') >= limit then break end
  remove(id)
  expired = expired + 1
end
return { 'expired', tostring(expired) }
