"""Settings: which source beats which, and what is refused."""

from pathlib import Path

import pytest

from colony.config import Config
from colony.errors import ConfigError


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Config.model_fields:
        monkeypatch.delenv(f"COLONY_{name.upper()}", raising=False)
        monkeypatch.delenv(f"COLONY_{name.upper()}_FILE", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "colony.toml").write_text('name = "written"\n')
    return tmp_path / "colony.toml"


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Config.load({"name": None}).name == "colony"
    assert Config.load({"name": None}, file=file).name == "written"
    monkeypatch.setenv("COLONY_NAME", "set")
    assert Config.load({"name": None}, file=file).name == "set"
    assert Config.load({"name": "given"}, file=file).name == "given"


def test_a_variable_set_to_nothing_is_not_set(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLONY_NAME", "")

    assert Config.load({}, file=file).name == "written"


@pytest.mark.parametrize(
    ("name", "value"), [("redis_url", "redis://:pw@h:1"), ("api_token", "tok-7")]
)
def test_a_secret_may_lie_in_a_file(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text(f"{value}\n")
    monkeypatch.setenv(f"COLONY_{name.upper()}_FILE", str(tmp_path / "secret"))

    config = Config.load({})
    assert {"redis_url": config.redis, "api_token": config.token}[name] == value
    assert value not in repr(config)

    monkeypatch.setenv(f"COLONY_{name.upper()}", value)
    with pytest.raises(ConfigError, match="are both set"):
        Config.load({})


def test_a_secret_file_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLONY_API_TOKEN_FILE", "/nowhere/token")

    with pytest.raises(ConfigError, match="COLONY_API_TOKEN_FILE cannot be read"):
        Config.load({})


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"name": "No Good"}, "name: 1 to 40 of a-z"),
        ({"redis_url": "http://:secret@x"}, "redis_url: an address starts redis://"),
        ({"redis_url": "redis+sentinel://:secret@a:1"}, "redis_url: an address of sentinels is"),
        ({"api": "8420"}, "api: '8420' is not HOST:PORT"),
        ({"api": "h:70000"}, "is not HOST:PORT"),
        ({"api_token": ""}, "api_token: an empty token"),
        ({"log_level": "loud"}, "log_level: "),
        ({"drain_s": 0}, "drain_s: "),
        ({"claim_idle_s": 0.09}, "claim_idle_s: "),
        ({"claim_idle_s": 3_601}, "claim_idle_s: "),
        ({"nmae": "x"}, "nmae: "),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_without_its_secret(
    flags: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        Config.load(flags)

    assert told in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["nmae = 'x'", "name = [", "name = 5"])
def test_a_file_that_is_wrong_is_refused(file: Path, text: str) -> None:
    file.write_text(text)

    with pytest.raises(ConfigError):
        Config.load({}, file=file)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        Config.load({}, file=tmp_path / "none.toml")


def test_data_lies_with_the_state_of_the_user_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")

    assert Config.load({"name": "x"}).home == Path("/state/colony/x")
    assert Config.load({"data": "/here"}).home == Path("/here")


def test_an_address_may_name_sentinels_by_bracketed_addresses() -> None:
    url = "redis+sentinel://a:26379,[::1]:26379/main"

    assert Config.load({"redis_url": url}).redis == url
