#!lua flags=allow-oom
-- commit: settle deliveries and publish what came of each, all or nothing, once.
--
-- KEYS
--   1   quiet      stream of traces with no live envelope
--   2   dead       dead letters
--   3   repairs    counts of what was found broken
--   4+  keys       per step: source, trace, log, outputs, belongings, streams, blobs; of a run that
--                  changes also its record, its session, events, history, steers
-- ARGV
--   1   group      consumer group that reads the sources
--   2   steps      how many deliveries
--   3+  parts      per step: entry, trace_id, head; then five lists, each behind its length:
--                  published (head, body), records, letters (code, target, message_id, facts,
--                  head, body), kept, blobs; then what changes in its run, or empty
-- RETURNS
--   committed <n>  settled and published; the trace has n live envelopes
--   stale          settled before, or deleted meanwhile; that is counted, nothing else is written
--   fenced         the trace takes no more work, or is gone; settled, the rest dropped
--   done           its run has had this step before; settled, the rest dropped
--   blob_lost      a blob is gone; nothing is written
-- REPEATS
--   safe: a settled entry cannot be settled again
local quiet, dead, repairs, group, count = KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[2])
local kinds, key_at, part_at, sound = {}, 3, 2, count ~= nil

local function key(kind)
  key_at = key_at + 1
  local name = KEYS[key_at]
  if name == nil then sound = false return false end
  kinds[name] = kinds[name] or redis.call('TYPE', name).ok
  if kinds[name] ~= kind and kinds[name] ~= 'none' then sound = false end
  return name
end
local function part()
  part_at = part_at + 1
  if ARGV[part_at] == nil then sound = false end
  return ARGV[part_at]
end
local function list(width, kind)
  local found, length = {}, tonumber(part())
  if length == nil then sound = false return found end
  for row = 1, length do
    local fields = { to = kind and key(kind) }
    for column = 1, width do fields[column] = part() end
    if not sound then return found end
    found[row] = fields
  end
  return found
end

-- What a step changes in its run: all of it is checked here, and written by `change`.
local function run_part()
  local packed = part()
  if not sound or packed == '' then return nil end
  local run = { run = key('hash'), session = key('hash'), events = key('stream'),
    history = key('list'), steers = key('list'), changes = cmsgpack.unpack(packed) }
  sound = sound and redis.acl_check_cmd('PUBLISH', run.changes.channel, '')
  for _, count in ipairs(sound and run.changes.counts or {}) do
    local record = run[count[1]]
    local before = redis.call('HGET', record, count[2]) or '0'
    sound = sound and string.match(before, '^%-?%d+$') ~= nil
  end
  return run
end

local steps, records = {}, {}
for n = 1, sound and count or 0 do
  local step = { source = key('stream'), trace = key('hash'), log = key('stream'),
    outputs = key('list'), belongings = key('set'), entry = part(), id = part(), head = part(),
    published = list(2, 'stream'), records = list(1), letters = list(6), kept = list(1),
    blobs = list(0, 'string'), run = run_part() }
  if not sound then break end
  local record = records[step.trace]
  if not record then
    local kept = redis.call('HMGET', step.trace, 'state', 'cause', 'live', 'steps')
    record = { state = kept[1], cause = kept[2] }
    record.live, record.steps = tonumber(kept[3] or 0), tonumber(kept[4] or 0)
    records[step.trace] = record
  end
  sound = record.live and record.steps and string.match(step.entry, '^%d+%-%d+$') ~= nil
  steps[n] = step
end
local function permitted(...)
  for _, command in ipairs({ ... }) do
    if not redis.acl_check_cmd(command, quiet) then return false end
  end
  return true
end
local function holds(name, kind)
  local found = redis.call('TYPE', name).ok
  return found == kind or found == 'none'
end
if not sound or key_at ~= #KEYS or part_at ~= #ARGV or not (holds(quiet, 'stream')
    and holds(dead, 'stream') and holds(repairs, 'hash')
    and permitted('XACK', 'XDEL', 'XADD', 'HINCRBY', 'HSET', 'RPUSH', 'PERSIST', 'SADD',
      'EXISTS', 'LPOP')) then
  return redis.error_reply('ERR commit: wrong arguments, keys or permissions')
end

local function count_down(step, record, by)
  record.live, record.steps = record.live + by, record.steps + 1
  redis.call('HSET', step.trace, 'live', record.live, 'steps', record.steps)
  if record.live == 0 then
    if record.state == 'open' then
      record.state = 'quiet'
      redis.call('HSET', step.trace, 'state', 'quiet', 'last', step.head)
    end
    redis.call('XADD', quiet, '*', 'trace', step.id)
  end
  return record.live
end

local function change(id, run)
  local changes = run.changes
  for _, field in ipairs(changes.fields) do
    local record = run[field[1]]
    redis.call('HSET', record, field[2], field[3])
  end
  for _, count in ipairs(changes.counts) do
    local record = run[count[1]]
    redis.call('HINCRBY', record, count[2], count[3])
  end
  for _, row in ipairs(changes.rows) do redis.call('RPUSH', run.history, row) end
  if changes.steers > 0 then redis.call('LPOP', run.steers, changes.steers) end
  for _, event in ipairs(changes.events) do
    local kind, turn, payload, durable, entry, seq = event[1], event[2], event[3], event[4], '', 0
    if durable == 1 then
      seq = redis.call('HINCRBY', run.run, 'seq', 1)
      entry = redis.call('XADD', run.events, '*', 'run', id, 'seq', seq, 'kind', kind,
        'turn', turn, 'payload', payload)
    end
    redis.call('PUBLISH', changes.channel,
      cmsgpack.pack({ entry, id, tostring(seq), kind, turn, payload }))
  end
end

local function apply(step)
  local record = records[step.trace]
  local fenced = not record.state
    or (record.state == 'ended' and (record.cause ~= 'completed' or record.live == 0))
  for _, blob in ipairs(fenced and {} or step.blobs) do
    if redis.call('EXISTS', blob.to) == 0 then return { 'blob_lost' } end
  end
  local pending = redis.call('XACK', step.source, group, step.entry) == 1
  if redis.call('XDEL', step.source, step.entry) == 0 then
    -- Whoever settles an entry takes it off both: one that was pending was deleted by a stranger.
    redis.call('HINCRBY', repairs, pending and 'entries_lost' or 'stale_commits', 1)
    return { 'stale' }
  end
  if fenced then
    if record.state and record.live > 0 then count_down(step, record, -1) end
    return { 'fenced' }
  end
  local once = step.run and step.run.changes.once or {}
  if once[1] and redis.call('HGET', step.run.run, once[1]) == once[2] then
    count_down(step, record, -1)
    return { 'done' }
  end
  for _, out in ipairs(step.published) do
    redis.call('XADD', out.to, '*', 'head', out[1], 'body', out[2])
  end
  for _, record in ipairs(step.records) do
    redis.call('XADD', step.log, '*', 'record', record[1])
  end
  for _, l in ipairs(step.letters) do
    redis.call('XADD', dead, '*', 'trace', step.id, 'code', l[1], 'target', l[2], 'message', l[3],
      'facts', l[4], 'head', l[5], 'body', l[6])
    redis.call('HINCRBY', step.trace, 'dead', 1)
    redis.call('HSET', step.trace, 'error_code', l[1], 'dead_target', l[2],
      'dead_message_id', l[3], 'dead_head', l[5])
  end
  for _, kept in ipairs(step.kept) do
    redis.call('RPUSH', step.outputs, kept[1])
    redis.call('HINCRBY', step.trace, 'outputs', 1)
  end
  for _, blob in ipairs(step.blobs) do
    redis.call('PERSIST', blob.to)
    redis.call('SADD', step.belongings, blob.to)
  end
  if step.run and record.state ~= 'ended' then change(step.id, step.run) end
  return { 'committed', count_down(step, record, #step.published - 1) }
end

local answers = {}
for n, step in ipairs(steps) do answers[n] = apply(step) end
return answers
