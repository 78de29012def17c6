#!lua flags=no-writes
-- store_newest: read the rows with one value in a column that were added last, as many as fit.
--
-- KEYS
--   1   catalogue    definitions of the store's tables
--   2   cells        values of the table, by row and column
--   3   index        rows in order, and rows by column and value: one lexical set
-- ARGV
--   1   name         of the table
--   2   definition   of the table, as the caller knows it
--   3   column       in which the value is looked for, and whose values are indexed
--   4   value        its text
--   5   range        of the index in which the rows with the value are
--   6   columns      what to read of each row
--   7   limit        how many rows at most
--   8   max_bytes    how long all that is read may be
-- RETURNS
--   rows <n>         n rows are indexed under the value; then the number of each that is read and
--                    its values, in the order they were added
--   unmade           the table is defined otherwise, or not at all
-- REPEATS
--   safe: it only reads
local catalogue, cells, index = KEYS[1], KEYS[2], KEYS[3]
local column, value = ARGV[3], ARGV[4]
local limit, left = tonumber(ARGV[7]), tonumber(ARGV[8])
if not (limit and left) then return redis.error_reply('ERR store_newest: wrong arguments') end
local range, columns = cmsgpack.unpack(ARGV[5]), cmsgpack.unpack(ARGV[6])
if redis.call('HGET', catalogue, ARGV[1]) ~= ARGV[2] then return { 'unmade' } end

local count = redis.call('ZLEXCOUNT', index, range[1], range[2])
local rows, seen = {}, 0
while seen < count and #rows < limit and left >= 0 do
  local found = redis.call('ZREVRANGEBYLEX', index, range[2], range[1], 'LIMIT', seen, limit)
  seen = seen + #found
  for _, member in ipairs(found) do
    local id = string.sub(member, -16)
    -- Another value may have the same hash, or begin with this one.
    local same = redis.call('HGET', cells, id .. ':' .. column) == value
    if same and #rows < limit and left >= 0 then
      local row = { id }
      for _, name in ipairs(columns) do
        row[#row + 1] = redis.call('HGET', cells, id .. ':' .. name)
        left = left - #(row[#row] or '')
      end
      if left >= 0 then rows[#rows + 1] = row end
    end
  end
end

local answer = { 'rows', count }
for n = #rows, 1, -1 do
  for _, text in ipairs(rows[n]) do answer[#answer + 1] = text end
end
return answer
