"""Who somebody is, by the token they show."""

import os
import time
from pathlib import Path

import pytest

from colony import principals
from colony.errors import ConfigError, Unauthorized
from colony.principals import Principal, Principals, digest_of, line_of, new_token


def test_without_tokens_everybody_is_the_operator() -> None:
    assert Principals().who(None) == Principal()
    assert not Principals().closed
    assert Principal().owner is None


@pytest.mark.parametrize("shown", [None, "", "other", "secret ", "sécret"])
def test_one_token_lets_its_holder_in_and_nobody_else(shown: str | None) -> None:
    known = Principals(token="secret")

    assert known.who("secret").operator
    with pytest.raises(Unauthorized):
        known.who(shown)


def test_a_file_tells_whose_a_token_is(tmp_path: Path) -> None:
    ann, new, ops = new_token(), new_token(), new_token()
    lines = [
        "# who may ask",
        line_of("ann", ann, operator=False),
        f"{line_of('ann', new, operator=False)}  # since May",
        "",
        line_of("ops", ops, operator=True),
    ]
    (tmp_path / "tokens").write_text("\n".join(lines))
    known = Principals(file=tmp_path / "tokens")

    assert known.who(ann) == known.who(new) == Principal("ann", operator=False)
    assert known.who(ann).owner == "ann"
    assert known.who(ops).owner is None
    for wrong in ("", None, digest_of(ann)):
        with pytest.raises(Unauthorized):
            known.who(wrong)


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "tokens").touch()

    assert Principals(file=tmp_path / "tokens").closed
    with pytest.raises(Unauthorized):
        Principals(file=tmp_path / "tokens").who("")


@pytest.mark.parametrize(
    "line",
    ["ann", "ann secret", f"ann {'0' * 64} boss", f"a/b {'0' * 64}", f"ann {'0' * 64} operator x"],
)
def test_a_line_that_is_none_is_refused_and_not_repeated(tmp_path: Path, line: str) -> None:
    (tmp_path / "tokens").write_text(f"\n{line}\n")

    with pytest.raises(ConfigError, match="line 2 of") as refused:
        Principals(file=tmp_path / "tokens")
    assert line not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Principals(file=tmp_path / "tokens")


def test_a_file_that_has_changed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(principals, "LOOK_AGAIN_S", 0)
    file, ann, bob = tmp_path / "tokens", new_token(), new_token()
    file.write_text(line_of("ann", ann, operator=False))
    known = Principals(file=file)

    write(file, line_of("bob", bob, operator=False))

    assert known.who(bob).name == "bob"
    with pytest.raises(Unauthorized):
        known.who(ann)


def test_a_file_that_breaks_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(principals, "LOOK_AGAIN_S", 0)
    file, ann = tmp_path / "tokens", new_token()
    file.write_text(line_of("ann", ann, operator=False))
    known = Principals(file=file)

    write(file, "nonsense")

    assert known.who(ann).name == "ann"


@pytest.mark.parametrize("name", ["", "a b", "ä", "a\n", "x" * 129])
def test_what_is_no_name_gets_no_line(name: str) -> None:
    with pytest.raises(ConfigError):
        line_of(name, "t", operator=False)


def write(file: Path, text: str) -> None:
    file.write_text(text)
    later = time.time_ns() + 10**9
    os.utime(file, ns=(later, later))
