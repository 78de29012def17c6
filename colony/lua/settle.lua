#!lua flags=allow-oom
-- settle: add a row of a round, and claim the round if that completes it.
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
--   5   packed       text of each value of the row, by column
--   6   round        row: what settle keeps beside the row, by column; absent ids are not known
--                    match: which row is claimed; question: where all rows are found
-- RETURNS
--   won <last>       the round is claimed; then the rows of its question up to the last, each as
--                    its number and its values
--   settled <n>      nothing is claimed; n results are missing, -1 where that is not known; with 0
--                    the row is late: the round was claimed before
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
    and holds(receipts, 'hash', 'HSET') and holds(unique, 'hash', 'HSET')
    and holds(cells, 'hash', 'HSET', 'HMGET')
    and holds(index, 'zset', 'ZADD', 'ZREM', 'ZRANGEBYLEX')) then
  return redis.error_reply('ERR settle: wrong arguments, keys or permissions')
end
local record = redis.call('HMGET', trace, 'state', 'cause', 'live')
if not record[1] or (record[1] == 'ended' and (record[2] ~= 'completed' or record[3] == '0')) then
  return { 'fenced' }
end

local defined, row, round = cmsgpack.unpack(definition), cmsgpack.unpack(ARGV[5]),
  cmsgpack.unpack(ARGV[6])
local claims, hidden = {}, round.row
if not (hidden['?round'] and round.match and round.question and round.unfired and round.fired) then
  return redis.error_reply('ERR settle: the round is incomplete')
end
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
local function find(column, value)
  local ids, first = {}, entry(column, value, '')
  local last = string.sub(first, 1, -2) .. '\1'
  for _, member in ipairs(redis.call('ZRANGEBYLEX', index, '[' .. first, '(' .. last)) do
    local id = string.sub(member, -16)
    if redis.call('HGET', cells, id .. ':' .. column) == value then ids[#ids + 1] = id end
  end
  return ids
end
local function merged(kept, given)
  local ids, known = cmsgpack.unpack(kept), {}
  for _, id in ipairs(ids) do known[id] = true end
  for _, id in ipairs(cmsgpack.unpack(given)) do
    if not known[id] then ids[#ids + 1] = id end
  end
  return cmsgpack.pack(ids)
end
local function won(last)
  local answer = { 'won', last }
  for _, id in ipairs(find(round.question[1], round.question[2])) do
    if tonumber(id) > tonumber(last) then break end
    answer[#answer + 1] = id
    for _, column in ipairs(defined.columns) do
      if string.sub(column[1], 1, 1) ~= '?' then
        answer[#answer + 1] = redis.call('HGET', cells, id .. ':' .. column[1])
      end
    end
  end
  return answer
end
local function answer(given)
  local token, count = given[1], tostring(given[2])
  redis.call('HSET', receipts, operation, digest .. ' ' .. token .. ' ' .. count)
  return { token, count }
end

local receipt = redis.call('HGET', receipts, operation)
if receipt then
  local first, token, count = string.match(receipt, '^(%S+) (%S+) (%S+)$')
  if first ~= digest then return { 'receipt_conflict' } end
  return token == 'won' and won(count) or { token, count }
end
if redis.call('HGET', catalogue, name) ~= definition then return { 'unmade' } end

local id
for n, columns in ipairs(defined.unique) do
  claims[#claims + 1] = claim(n, columns)
end
for _, key in ipairs(claims) do id = id or redis.call('HGET', unique, key) end
if not id then
  local now = redis.call('TIME')
  id = string.format('%016d', tonumber(redis.call('HGET', cells, 'seq') or '0') + 1)
  redis.call('HSET', cells, 'seq', id)
  redis.call('HSET', cells, id .. ':', now[1] .. string.format('%03d', math.floor(now[2] / 1000)))
  redis.call('ZADD', index, 0, '\0\0' .. id)
  for column, value in pairs(row) do redis.call('HSET', cells, id .. ':' .. column, value) end
  for _, column in ipairs(defined.index) do
    if row[column] then redis.call('ZADD', index, 0, entry(column, row[column], id)) end
  end
  for _, key in ipairs(claims) do redis.call('HSET', unique, key, id) end
end
for column, text in pairs(hidden) do
  local kept = redis.call('HGET', cells, id .. ':' .. column)
  if column ~= '?round' then
    redis.call('HSET', cells, id .. ':' .. column, kept and merged(kept, text) or text)
  elseif not kept then
    redis.call('HSET', cells, id .. ':?round', text)
    redis.call('ZADD', index, 0, entry('?round', text, id))
  end
end

local expected, answered, missing = {}, {}, 0
for _, id in ipairs(find('?round', hidden['?round'])) do
  local kept = redis.call('HMGET', cells, id .. ':?expects', id .. ':?answers')
  for _, call in ipairs(kept[1] and cmsgpack.unpack(kept[1]) or {}) do expected[call] = true end
  for _, call in ipairs(kept[2] and cmsgpack.unpack(kept[2]) or {}) do answered[call] = true end
end
for call in pairs(expected) do
  if not answered[call] then missing = missing + 1 end
end
if next(expected) == nil then return answer({ 'settled', -1 }) end
if missing > 0 then return answer({ 'settled', missing }) end

local claimed = false
for _, id in ipairs(find(round.question[1], round.question[2])) do
  local matches = redis.call('HGET', cells, id .. ':fired') == round.unfired
  for column, value in pairs(round.match) do
    matches = matches and redis.call('HGET', cells, id .. ':' .. column) == value
  end
  if matches then
    claimed = true
    redis.call('HSET', cells, id .. ':fired', round.fired)
    if redis.call('ZREM', index, entry('fired', round.unfired, id)) == 1 then
      redis.call('ZADD', index, 0, entry('fired', round.fired, id))
    end
  end
end
if not claimed then return answer({ 'settled', 0 }) end
local last = redis.call('HGET', cells, 'seq')
answer({ 'won', last })
return won(last)
