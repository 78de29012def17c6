"""Log lines: one for each event, readable by people and machines, without secrets."""

import json
import logging
from collections.abc import Iterator

import pytest

from colony import log as log_module
from colony.errors import ServerUnavailable
from colony.log import Outage, configure, get_logger

NAMES = ("colony", "workers")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(log_module, "_format", "console")
    monkeypatch.setattr(Outage, "_said", -1000.0)
    monkeypatch.setattr(Outage, "_began", None)
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(it.handlers[:], it.level, it.propagate) for it in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def test_a_line_is_an_event_and_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure()

    get_logger("colony.test", trace="t1").info("happened", count=3, path="/a")

    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" INFO    happened trace=t1 count=3 path=/a")


def test_a_line_of_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    configure(log_format="json")

    get_logger("workers.test", trace="t1").warning("happened", detail='a "b"\nc', odd={1})

    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line) == {
        "level": "warning",
        "event": "happened",
        "trace": "t1",
        "detail": 'a "b"\nc',
        "odd": "{1}",
    }


def test_what_a_user_sent_cannot_forge_a_line_or_a_field(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure()

    get_logger("colony.test").error("failed", detail="x level=fine\nERROR forged \x1b[31m")

    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith('detail="x level=fine\\nERROR forged \\u001b[31m"')


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_secrets_are_not_written(capsys: pytest.CaptureFixture[str], log_format: str) -> None:
    configure(log_format=log_format)  # type: ignore[arg-type]

    get_logger("colony.test", api_key="s3cret").info("x", token="s3cret", tokens=7)

    written = capsys.readouterr().err
    assert "s3cret" not in written
    assert "7" in written


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_an_exception_comes_with_its_traceback(
    capsys: pytest.CaptureFixture[str], log_format: str
) -> None:
    configure(log_format=log_format)  # type: ignore[arg-type]

    try:
        raise ValueError("the cause")
    except ValueError:
        get_logger("colony.test").exception("failed", trace="t")

    written = capsys.readouterr().err
    assert "ValueError: the cause" in written
    assert "test_log.py" in written
    assert "exc_info" not in written


def test_lines_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure("warning")

    get_logger("colony.test").info("quiet")
    get_logger("colony.test").warning("loud")

    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == ["loud"]


def test_configuring_twice_writes_each_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    configure()

    get_logger("colony.test").info("once")

    assert capsys.readouterr().err.count("once") == 1


def test_an_outage_is_told_once_however_many_find_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure()
    now = 100.0
    monkeypatch.setattr(log_module.time, "monotonic", lambda: now)
    logger, error = get_logger("colony.test"), ServerUnavailable(detail="gone")

    for _ in range(50):
        Outage.report(logger, error)
    now += 29
    Outage.report(logger, error)
    assert capsys.readouterr().err.count("server_unavailable") == 1

    now += 2
    Outage.report(logger, error)
    assert "gone" in capsys.readouterr().err


def test_a_server_that_is_back_is_told_once_and_not_before_it_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure()
    now = 100.0
    monkeypatch.setattr(log_module.time, "monotonic", lambda: now)
    logger, error = get_logger("colony.test"), ServerUnavailable(detail="gone")

    Outage.answered(logger)
    for _ in range(3):
        Outage.report(logger, error)
        now += 2
        Outage.answered(logger)
    assert "server_back" not in capsys.readouterr().err

    now += 2
    Outage.answered(logger)
    Outage.answered(logger)
    assert capsys.readouterr().err.count("server_back away_s=4.0") == 1
    Outage.report(logger, error)
    assert "server_unavailable" in capsys.readouterr().err
