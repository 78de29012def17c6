"""Errors: everything that goes wrong in colony, by one stable code each.

    ColonyError
    ├── PathError               path_invalid
    ├── BodyError               invalid_ubf_body
    ├── EnvelopeError           envelope_invalid
    │   ├── BodyTooLarge        body_too_large
    │   └── HeaderTooLarge      header_too_large
    ├── TopologyError           topology_invalid
    │   ├── TopologyTooLarge    topology_too_large
    │   ├── TopologyConflict    topology_conflict
    │   ├── SubstitutionError   substitution_unsupported
    │   ├── VariableUnset       variable_unset
    │   ├── TopologyMissing     topology_missing
    │   └── ExpressionError     expression_invalid
    │       ├── ExpressionTooLarge  expression_limit
    │       └── MissingKey      expression_missing_key
    ├── CellError               cell_failed
    │   ├── NoRun               no_run
    │   └── MessageTimeout      message_timeout
    │       └── ToolOverdue     tool_timeout
    ├── JobFailed               job_failed
    │   ├── JobOverdue          job_timeout
    │   ├── JobUntaken          no_job_worker
    │   └── OutcomeUnknown      outcome_unknown
    ├── ToolError               tool_failed
    │   ├── InvalidInput        invalid_input
    │   ├── NotFound            not_found
    │   ├── OutsideBoundary     path_outside_boundary
    │   ├── NotADirectory       not_a_directory
    │   ├── NotAFile            not_a_file
    │   ├── PatternNotFound     pattern_not_found
    │   ├── UnexpectedMatchCount  unexpected_match_count
    │   ├── ToolTimeout         timeout
    │   ├── Unreadable          io_error
    │   ├── TargetBlocked       target_blocked
    │   ├── InvalidRedirect     invalid_redirect
    │   ├── TooManyRedirects    too_many_redirects
    │   ├── UnknownTool         unknown_tool
    │   ├── NotConnected        not_connected
    │   └── ConnectionLost      connection_lost
    ├── PlatformError           send_failed
    ├── BlobUnavailable         blob_unavailable
    ├── BlobRecursionTooDeep    blob_recursion_too_deep
    ├── StoreError              store_refused
    │   ├── InvalidOperation    invalid_input
    │   ├── UnknownTable        unknown_table
    │   ├── UnknownColumn       unknown_column
    │   ├── TypeMismatch        type_mismatch
    │   ├── TableConflict       sql_error
    │   ├── ConstraintViolation constraint_violation
    │   ├── ResultTooLarge      result_too_large
    │   └── ReceiptConflict     receipt_conflict
    ├── TraceNotFound           trace_not_found
    ├── RecordBroken            record_broken
    ├── GuardReused             idempotency_key_reused
    ├── Backlogged              backlogged
    ├── DeadLetterNotFound      dead_letter_not_found
    ├── RoundNotFound           round_not_found
    ├── ThreadNotFound          thread_not_found
    ├── RequestNotFound         request_not_found
    ├── DocumentNotFound        document_not_found
    ├── SessionNotFound         session_not_found
    ├── AgentNotFound           agent_not_found
    ├── InvalidArgument         invalid_argument
    ├── Unauthorized            unauthorized
    ├── RunRefused              run_refused
    │   ├── SessionBusy         session_busy
    │   ├── SessionAwaiting     session_awaiting
    │   ├── RetryPending        retry_pending
    │   ├── RetryIneligible     failed_step_retry_ineligible
    │   ├── AskNotPending       ask_not_pending
    │   └── StaleRunControl     stale_run_control
    ├── CursorMalformed         cursor_malformed
    ├── CursorExpired           cursor_expired
    ├── FollowerLagging         watch_lagging
    ├── ServerStopping          server_stopping
    ├── Fenced                  fenced
    ├── SettledElsewhere        settled
    ├── ServerChanged           server_changed
    ├── ServerUnfit             server_unfit
    ├── ServerMissing           server_missing
    ├── ServerUnavailable       server_unavailable
    │   └── ServerFull          server_full
    ├── ModelFailed             model_failed
    ├── ConfigError             config_invalid
    └── ScriptError             script_mismatch

The code is the dead-letter reason, the HTTP problem type, the metric label and the log field. What
happened is in `facts`; the sentence is built from them.
"""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import JsonValue


class ColonyError(Exception):
    """A failure with a stable `code` and the facts its sentence is built from."""

    code: ClassVar[str] = "colony_error"
    sentence: ClassVar[str] = "{detail}"

    def __init__(self, **facts: object) -> None:
        self.facts: Mapping[str, object] = facts
        super().__init__(self.sentence.format(**facts))


class PathError(ColonyError):
    """A cell path that cannot name a cell."""

    code = "path_invalid"
    sentence = "{path!r} is not a cell path: {detail}"


class BodyError(ColonyError):
    """A body that is not in the universal body format."""

    code = "invalid_ubf_body"


class EnvelopeError(ColonyError):
    """Bytes or fields that do not make an envelope."""

    code = "envelope_invalid"


class BodyTooLarge(EnvelopeError):
    """A body above the limit."""

    code = "body_too_large"
    sentence = "the body has {size} bytes; {limit} are allowed"


class HeaderTooLarge(EnvelopeError):
    """Headers above the limit."""

    code = "header_too_large"
    sentence = "the headers have {size} bytes; {limit} are allowed"


class TopologyError(ColonyError):
    """A tree that cannot be run."""

    code = "topology_invalid"


class TopologyTooLarge(TopologyError):
    """A tree whose embedded files exceed the limits of a publication."""

    code = "topology_too_large"
    sentence = "{what} has {size} bytes; {limit} are allowed"


class TopologyConflict(TopologyError):
    """A publication on top of a version that is no longer the newest."""

    code = "topology_conflict"
    sentence = "expected version {expected}, found {found}: somebody else published"


class SubstitutionError(TopologyError):
    """A reference in a string that is neither a variable nor an escape."""

    code = "substitution_unsupported"
    sentence = "{reference!r} is neither ${{NAME}} nor ${{NAME:-default}}; $${{ is a literal ${{"


class VariableUnset(TopologyError):
    """A variable that a tree names and the environment does not set."""

    code = "variable_unset"
    sentence = "set neither in the environment nor in the tree's .env: {names}"


class TopologyMissing(TopologyError):
    """A colony that no tree was published for."""

    code = "topology_missing"
    sentence = "no tree was applied to the colony {name!r}"


class ExpressionError(TopologyError):
    """An expression that cannot be parsed or evaluated."""

    code = "expression_invalid"


class ExpressionTooLarge(ExpressionError):
    """An expression above the limits of length or depth."""

    code = "expression_limit"
    sentence = "the expression has {what} {size}; {limit} is allowed"


class MissingKey(ExpressionError):
    """An expression that read a header key which is absent."""

    code = "expression_missing_key"
    sentence = "no such key: {detail}"


class CellError(ColonyError):
    """A cell that could not handle its envelope.

    `retryable` decides: the delivery stays pending and is handled again, or it is dead-lettered.
    """

    code = "cell_failed"

    def __init__(self, *, retryable: bool = False, **facts: object) -> None:
        super().__init__(**facts)
        self.retryable = retryable


class NoRun(CellError):
    """A handler that wants its run, for an envelope that belongs to none."""

    code = "no_run"
    sentence = "{path} works for runs of agents, and the envelope belongs to none"


class MessageTimeout(CellError):
    """A handler that outlived its cell's message timeout."""

    code = "message_timeout"
    sentence = "{path} took longer than {timeout_ms} ms"


class ToolOverdue(MessageTimeout):
    """A handler that outlived the timeout its cell declares as a tool."""

    code = "tool_timeout"


class JobFailed(ColonyError):
    """A job that ended without an answer; it is told by the edges of its cell."""

    code = "job_failed"


class JobOverdue(JobFailed):
    """A job that was ended because it took too long."""

    code = "job_timeout"


class JobUntaken(JobFailed):
    """A job that no process was there to take."""

    code = "no_job_worker"
    sentence = "no job process takes jobs of {queue}: start one with `colony jobs`"


class OutcomeUnknown(JobFailed):
    """A call that may change something and was begun before, with no word of how it ended."""

    code = "outcome_unknown"
    sentence = "{path} was begun before and cut off; what it did is not known, it is not run again"


class ToolError(ColonyError):
    """A tool call that could not be done. The model reads the sentence, the edges read the code.

    `hop` is what else the edges may know of it; `output` is what there is of a result, which the
    model reads after the sentence.
    """

    code = "tool_failed"

    def __init__(
        self, *, hop: Mapping[str, JsonValue] | None = None, output: str = "", **facts: object
    ) -> None:
        super().__init__(**facts)
        self.hop = hop or {}
        self.output = output


class InvalidInput(ToolError):
    """Arguments that a tool cannot work with."""

    code = "invalid_input"


class NotFound(ToolError):
    """Something a tool was asked for that is not there."""

    code = "not_found"
    sentence = "there is no {what}"


class OutsideBoundary(ToolError):
    """A path that leads out of the folder a tool may touch."""

    code = "path_outside_boundary"
    sentence = "{path} lies outside of the folder"


class NotADirectory(ToolError):
    """A path that goes on, or a listing that is asked for, below what is no folder."""

    code = "not_a_directory"
    sentence = "{path} is not a folder, or leads through something that is none"


class NotAFile(ToolError):
    """A path that names a folder, a pipe or a device."""

    code = "not_a_file"
    sentence = "{path} is not a file"


class PatternNotFound(ToolError):
    """A text to be found or replaced that is not there."""

    code = "pattern_not_found"
    sentence = "{path} does not hold the text to find"


class UnexpectedMatchCount(ToolError):
    """A text to be replaced that the file holds more or less often than was said."""

    code = "unexpected_match_count"
    sentence = "{path} holds the text {found} times, not {expected}: nothing was changed"


class ToolTimeout(ToolError):
    """A tool that took longer than it may."""

    code = "timeout"
    sentence = "{operation} took longer than {timeout_ms} ms"


class Unreadable(ToolError):
    """A file, host or service that does not answer as it should."""

    code = "io_error"


class TargetBlocked(ToolError):
    """A place that a tool must not reach."""

    code = "target_blocked"
    sentence = "{target} is blocked: {detail}"


class InvalidRedirect(ToolError):
    """A redirect that must not be followed."""

    code = "invalid_redirect"
    sentence = "{url} redirects to {location!r}: {detail}"


class TooManyRedirects(ToolError):
    """A chain of redirects above the limit."""

    code = "too_many_redirects"
    sentence = "more than {limit} redirects"


class UnknownTool(ToolError):
    """A call of a tool that nobody offers."""

    code = "unknown_tool"
    sentence = "there is no tool {name!r}"


class NotConnected(ToolError):
    """A server of tools that is not reached; the call never came to it."""

    code = "not_connected"
    sentence = "the server of this tool is not reached, and the call was not made: {detail}"


class ConnectionLost(ToolError):
    """A connection to a server of tools that ended before the answer to a call."""

    code = "connection_lost"
    sentence = "no answer, and the call may have been carried out or not: {detail}"


class PlatformError(ColonyError):
    """A messaging platform that did not do what a proxy asked of it.

    `repeatable` is true where it certainly did not, and may be asked again; `retry_after_s` is what
    it asked for.
    """

    code = "send_failed"

    def __init__(
        self,
        *,
        status: int | None = None,
        repeatable: bool = False,
        retry_after_s: float | None = None,
        **facts: object,
    ) -> None:
        super().__init__(**facts)
        self.status = status
        self.repeatable = repeatable
        self.retry_after_s = retry_after_s


class BlobUnavailable(ColonyError):
    """A blob that is referred to and gone."""

    code = "blob_unavailable"
    sentence = "blob {blob_id} is gone"


class BlobRecursionTooDeep(ColonyError):
    """Pointers that nest too deep or in a circle."""

    code = "blob_recursion_too_deep"
    sentence = "the pointers nest deeper than {limit} or in a circle at blob {blob_id}"


class StoreError(ColonyError):
    """A store operation that is refused; `code` is given by the refusal."""

    code = "store_refused"


class InvalidOperation(StoreError):
    """A request that is not an operation; `operation` is the name it gave, if it is one."""

    code = "invalid_input"


class UnknownTable(StoreError):
    """An operation on a table that the store does not have."""

    code = "unknown_table"
    sentence = "no such table: {table}"


class UnknownColumn(StoreError):
    """An operation that names a column its table does not have."""

    code = "unknown_column"
    sentence = "no such column: {column}"


class TypeMismatch(StoreError):
    """A value that the type of its column cannot hold."""

    code = "type_mismatch"
    sentence = "column {column} holds {expected}: {detail}"


class TableConflict(StoreError):
    """A table that exists with another definition."""

    code = "sql_error"
    sentence = "table {table} exists: {detail}"


class ConstraintViolation(StoreError):
    """A row whose unique key another row has."""

    code = "constraint_violation"
    sentence = "another row has the same {columns}"


class ResultTooLarge(StoreError):
    """An operation whose rows no message can hold."""

    code = "result_too_large"
    sentence = "the answer would have {size} bytes; {limit} are allowed"


class ReceiptConflict(StoreError):
    """A repeated store operation whose content is not that of its receipt."""

    code = "receipt_conflict"
    sentence = "operation {ordinal} of envelope {envelope_id} was done with other content"


class TraceNotFound(ColonyError):
    """A trace that was never admitted, or whose retention is over."""

    code = "trace_not_found"
    sentence = "no trace {trace_id}"


class RecordBroken(ColonyError):
    """The record of a trace that somebody else wrote to: it cannot be read."""

    code = "record_broken"
    sentence = "the record of trace {trace_id} cannot be read: {detail}"


class GuardReused(ColonyError):
    """An idempotency key that came with another request before."""

    code = "idempotency_key_reused"
    sentence = "the idempotency key belongs to another request, of trace {trace_id}"


class Backlogged(ColonyError):
    """A message from outside that is refused because too much waits already.

    Nothing was written: the same may be sent again after `retry_after_s`.
    """

    code = "backlogged"
    sentence = "the backlog is {waiting}, at most {limit}: try again in {retry_after_s} s"


class DeadLetterNotFound(ColonyError):
    """A dead letter that was dropped, or never written."""

    code = "dead_letter_not_found"
    sentence = "no dead letter {letter_id}"


class RoundNotFound(ColonyError):
    """A question without an open round."""

    code = "round_not_found"
    sentence = "no round of the question {turn_id} is open"


class ThreadNotFound(ColonyError):
    """A question of which nothing is kept, or no row."""

    code = "thread_not_found"
    sentence = "{what} is kept of the question {question}"


class RequestNotFound(ColonyError):
    """A question of which it is not known what a model was sent."""

    code = "request_not_found"
    sentence = "what a model was sent for the question {question} is not known: {detail}"


class DocumentNotFound(ColonyError):
    """A handle that no text is kept under."""

    code = "document_not_found"
    sentence = "nothing is kept as {handle}: {detail}"


class SessionNotFound(ColonyError):
    """No such session of an agent, or one of somebody else: both look the same."""

    code = "session_not_found"
    sentence = "there is no session {session_id}"


class AgentNotFound(ColonyError):
    """No hive of the published tree is an agent of this name."""

    code = "agent_not_found"
    sentence = "there is no agent {agent}"


class InvalidArgument(ColonyError):
    """A request that says what cannot be meant."""

    code = "invalid_argument"


class Unauthorized(ColonyError):
    """Somebody who shows no token, or one that nobody was given."""

    code = "unauthorized"


class RunRefused(ColonyError):
    """What a session or its run is asked for does not fit the state it is in."""

    code = "run_refused"


class SessionBusy(RunRefused):
    """A session that a run drives."""

    code = "session_busy"
    sentence = "a run of session {session_id} is under way"


class SessionAwaiting(RunRefused):
    """A session whose run waits for an answer."""

    code = "session_awaiting"
    sentence = "a run of session {session_id} waits for an answer"


class RetryPending(RunRefused):
    """A session that owes a retry before any prompt."""

    code = "retry_pending"
    sentence = "session {session_id} owes a retry before anything else"


class RetryIneligible(RunRefused):
    """A session whose last step is not one to make again."""

    code = "failed_step_retry_ineligible"
    sentence = "the last step of session {session_id} cannot be made again"


class AskNotPending(RunRefused):
    """An ask that was answered before, or that was never asked."""

    code = "ask_not_pending"
    sentence = "ask {ask_id} does not wait for an answer"


class StaleRunControl(RunRefused):
    """A control that names a run which is not under way."""

    code = "stale_run_control"
    sentence = "session {session_id} has no such run under way"


class CursorMalformed(ColonyError):
    """A cursor that is none, or that of another session."""

    code = "cursor_malformed"
    sentence = "{cursor!r} is no cursor of this session"


class CursorExpired(ColonyError):
    """A cursor whose place in the log is no longer kept."""

    code = "cursor_expired"
    sentence = "what came behind {cursor!r} is no longer kept: begin without a cursor"


class FollowerLagging(ColonyError):
    """A follower that took its events too slowly, and is to come back with its cursor."""

    code = "watch_lagging"
    sentence = "events were not taken in time: go on behind {cursor!r}"


class ServerStopping(ColonyError):
    """A process that stops, and tells whoever follows something over it to go elsewhere."""

    code = "server_stopping"


class Fenced(ColonyError):
    """Work for a trace that ended as cancelled or failed, or is gone."""

    code = "fenced"
    sentence = "trace {trace_id} has ended or is gone"


class SettledElsewhere(ColonyError):
    """A delivery that is settled without a commit: by another process, or by being parked."""

    code = "settled"
    sentence = "the entry {entry} is settled"


class ServerChanged(ColonyError):
    """A delivery of a server that this connection no longer talks to."""

    code = "server_changed"
    sentence = "the delivery came from server {expected}; this is {found}"


class ServerUnfit(ColonyError):
    """A Redis server that colony refuses to run on."""

    code = "server_unfit"


class ServerMissing(ColonyError):
    """No Redis server to be found or started."""

    code = "server_missing"


class ServerUnavailable(ColonyError):
    """A server that cannot do the work now: away, loading, full, or without its replicas.

    Never the fault of what was asked; the same may be asked again.
    """

    code = "server_unavailable"
    sentence = "Redis is unavailable: {detail}"


class ServerFull(ServerUnavailable):
    """A server whose memory is spent: it takes nothing new until something goes."""

    code = "server_full"
    sentence = "Redis is full: {detail}"


class ModelFailed(ColonyError):
    """A model that was asked for a word and gave none: it was not reached, or refused."""

    code = "model_failed"
    sentence = "{model} at {place} answers {reason}: {detail}"


class ConfigError(ColonyError):
    """A setting that cannot be used."""

    code = "config_invalid"


class ScriptError(ColonyError):
    """A Lua script and its caller that disagree: our own mistake."""

    code = "script_mismatch"
