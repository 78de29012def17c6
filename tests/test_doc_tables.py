"""The documents: every table on the pages about cells says what the code says."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import get_args

import pytest
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from colony.cell import ENTRY_POINTS, cell_type
from colony.errors import (
    BlobRecursionTooDeep,
    BlobUnavailable,
    BodyError,
    CellError,
    ColonyError,
    EnvelopeError,
    JobFailed,
    PlatformError,
    ReceiptConflict,
    StoreError,
)
from colony.host import Host, Source
from colony.keeping.audit import LOST
from colony.operations import OPERATIONS
from colony.topology.model import HiveParams, Isolation
from tests.pages import DOCS, PAGES, named, rows, section
from workers.llm.provider import AnswerWarning, ErrorCode
from workers.llm.threads.pairing import Repair
from workers.timer.operations import Operation
from workers.toolloop.conversation import RecallParams
from workers.toolloop.params import HandlerParams
from workers.toolloop.view import ViewParams

DASH = "\N{EN DASH}"


def _defaults(model: type[BaseModel]) -> dict[str, str]:
    """What each param is when it is left out, as JSON; a dash where it has to be given."""
    return {
        field.alias or name: DASH
        if field.is_required()
        else json.dumps(to_jsonable_python(field.get_default(call_default_factory=True)))
        for name, field in model.model_fields.items()
    }


def _shipped_types() -> list[str]:
    """The cell types that this distribution brings, and `hive`, which is none."""
    described = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    return ["hive", *described["entry-points"][ENTRY_POINTS]]


def test_table_of_cell_types_leads_to_each() -> None:
    table = rows(PAGES["cell-types"], "type")

    assert sorted(name for types, *_ in table for name in named(types)) == sorted(_shipped_types())


@pytest.mark.parametrize("name", _shipped_types())
def test_params_are_those_of_the_cell_type(name: str) -> None:
    model: type[BaseModel] = HiveParams if name == "hive" else cell_type(name).Params
    written = (
        {}
        if name == "sink"
        else {
            param: default.strip("`")
            for params, default, *_ in rows(section(f"`{name}`"), "param")
            for param in named(params)
        }
    )

    assert written == _defaults(model)


def _caps() -> set[tuple[str, str, str]]:
    """Every cap on what a model is shown: its name, whose it is, and its default."""
    found = {(name, "prep", default) for name, default in _of_view(RecallParams)}
    for of in ("collect", "settle"):
        found |= {(name, of, default) for name, default in _of_view(ViewParams)}
    for tool in ("web_search", "web_fetch", "bash", "file", "mcp"):
        params = _defaults(cell_type(tool).Params)
        found |= {(n, tool, params[n]) for n in ("max_bytes", "keep_bytes") if n in params}
    # That page is held against the template.
    handed = {n: default for n, default, _ in rows(PAGES["compaction"], "value")}
    return found | {(n, "compaction", handed[f"`{n}`"].strip("`")) for n in ("tokens", "rounds")}


def _of_view(params: type[HandlerParams]) -> Iterator[tuple[str, str]]:
    for name, default in _defaults(params).items():
        if name.startswith("max_"):
            yield name, default


def test_caps_are_those_of_handlers_tools_and_the_template() -> None:
    written = {
        (name, of, default.strip("`"))
        for names, owners, default, _ in rows(section("All caps"), "cap")
        for name in named(names)
        for of in named(owners)
    }

    assert written == _caps()


def _codes(family: type[ColonyError]) -> Iterator[str]:
    for kind in family.__subclasses__():
        yield kind.code
        yield from _codes(kind)


def _of_programs() -> set[str]:
    """The codes that the modules of the code cell name."""
    text = "".join(path.read_text() for path in (DOCS.parent / "workers" / "code").glob("*.py"))
    found = {*re.findall(r'Failure\(\s*"(\w+)"', text)}
    return (
        found
        | {*re.findall(r'^(?:TOO_LATE|BROKEN) = "(\w+)"', text, re.MULTILINE)}
        | {"invalid_ubf_body"}
    )


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("code", _of_programs),
        ("llm", lambda: {*get_args(ErrorCode)}),
        (
            "store",
            lambda: {*_codes(StoreError), "write_denied", "query_timeout"} - {ReceiptConflict.code},
        ),
        (
            "web_fetch",
            lambda: {
                *("invalid_input", "not_found", "target_blocked", "timeout", "io_error"),
                *("invalid_redirect", "too_many_redirects"),
            },
        ),
        ("web_search", lambda: {"invalid_input", "timeout", "io_error"}),
        (
            "proxy",
            lambda: {
                *("invalid_body", "missing_chat_id", "missing_assistant_turn"),
                PlatformError.code,
            },
        ),
        ("timer", lambda: {"invalid_input", "not_found", "timeout"}),
        ("bash", lambda: {"invalid_input", "timeout", "io_error"}),
        (
            "file",
            lambda: {
                *("invalid_input", "path_outside_boundary", "not_found", "io_error"),
                *("not_a_directory", "not_a_file", "pattern_not_found"),
            },
        ),
        ("edit", lambda: {"pattern_not_found", "unexpected_match_count"}),
        (
            "mcp",
            lambda: {
                *("invalid_input", "unknown_tool", "tool_failed", "timeout"),
                *("not_connected", "connection_lost"),
            },
        ),
    ],
)
def test_error_codes_are_those_of_the_cell_type(name: str, codes: Callable[[], set[str]]) -> None:
    written = [c for found, *_ in rows(section(f"`{name}`"), "code") for c in named(found)]

    assert sorted(written) == sorted(codes())


def test_host_is_described_whole() -> None:
    written = [n for found, _ in rows(section("The host"), "member") for n in named(found)]

    members = {name for name in vars(Host) if not name.startswith("_")}
    assert {name.partition("(")[0] for name in written} == members


def test_source_is_described_whole() -> None:
    table = rows(section("Envelopes of its own"), "member")
    written = {n.partition("(")[0] for found, _ in table for n in named(found)}

    assert written == {name for name in vars(Source) if not name.startswith("_")}


def test_warnings_are_those_of_answers() -> None:
    table = rows(section("How an answer is read"), "warning")
    written = [name for found, _ in table for name in named(found)]

    assert sorted(written) == sorted(get_args(AnswerWarning))


def test_repairs_are_those_of_threads() -> None:
    _, _, listed = section("What it is asked").partition("`meta.repairs` by kind:")

    assert sorted(named(listed)) == sorted(get_args(Repair))


def test_ways_to_handle_a_cell_are_those_of_a_tree() -> None:
    table = rows(section("Where a cell is handled"), "`isolation`")
    written = [name for found, *_ in table for name in named(found)]

    assert sorted(written) == sorted(get_args(Isolation))


def test_error_codes_of_jobs_are_those_of_jobs() -> None:
    table = rows(section("Handled by a job"), "`error_code`")
    written = {name for found, _ in table for name in named(found)}

    assert written == {JobFailed.code, *_codes(JobFailed)}


def test_operations_are_those_of_the_timer() -> None:
    written = [name for found, *_ in rows(section("`timer`"), "op") for name in named(found)]

    assert written == [*get_args(Operation.model_fields["op"].annotation)]


def test_operations_are_those_of_the_store() -> None:
    written = {n for found, *_ in rows(section("`store`"), "operation") for n in named(found)}

    assert written == OPERATIONS


def test_log_lines_to_look_for_are_written_somewhere() -> None:
    table = rows((DOCS / "guarantees.md").read_text(), "line")
    sources = [
        path for part in ("colony", "workers") for path in (DOCS.parent / part).rglob("*.py")
    ]
    text = "".join(path.read_text() for path in sources)

    unheard = [n for lines, *_ in table for n in named(lines) if f'"{n}"' not in text]
    assert unheard == []


def _codes_of_death() -> dict[str, bool]:
    """Every code that the modules which bury envelopes name, and whether it is answered."""
    colony = DOCS.parent / "colony"
    text = "".join(
        (colony / f"{name}.py").read_text() for name in ("routing", "consumer", "keeping/unhosted")
    )
    routed = {*re.findall(r'(?:_stranded|Death|bury|letter_of)\([^"()]*"(\w+)"', text)}
    routed |= {*re.findall(r'return "(\w+)"', text), *re.findall(r'return "(\w+)" if', text)}
    routed |= {"ttl_expired", LOST, *re.findall(r'else "(\w+)"', text)}
    refused = {*re.findall(r'_refuse\([^"()]*"(\w+)"', (colony / "worker.py").read_text())}
    families = (EnvelopeError, CellError)
    raised = {BlobUnavailable.code, BlobRecursionTooDeep.code, BodyError.code}
    raised |= {code for kind in families for code in (kind.code, *_codes(kind))}
    return dict.fromkeys(routed | raised, False) | dict.fromkeys(
        refused | {"unresolved_path"}, True
    )


def test_every_code_of_a_dead_letter_has_its_row() -> None:
    page = (DOCS / "dead-letters.md").read_text()
    tables = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", page, re.MULTILINE)

    assert {code: answered == "yes" for code, answered in tables} == _codes_of_death()
