"""A token for somebody, of which only the digest is kept."""

from pathlib import Path

from colony.principals import Principals
from tests.cli.conftest import Colony


def test_a_token_lets_its_holder_in(colony: Colony, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    ann = colony("token", "ann", "--file", str(file)).stdout.strip()
    ops = colony("token", "ops", "--operator", "--file", str(file)).stdout.strip()

    known = Principals(file=file)
    assert (known.who(ann).name, known.who(ann).operator) == ("ann", False)
    assert known.who(ops).operator
    assert ann not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


def test_a_token_without_a_file_tells_its_line(colony: Colony, tmp_path: Path) -> None:
    told = colony.json("token", "ann")
    (tmp_path / "tokens").write_text(told["line"])

    assert Principals(file=tmp_path / "tokens").who(told["token"]).name == "ann"


def test_a_line_goes_behind_one_that_does_not_end(colony: Colony, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# tokens")

    made = colony("token", "ann", "--file", str(file)).stdout.strip()

    assert Principals(file=file).who(made).name == "ann"


def test_what_is_no_name_is_refused(colony: Colony, tmp_path: Path) -> None:
    told = colony("token", "a b", "--file", str(tmp_path / "tokens"), status=2)

    assert "is no name" in told.stderr
    assert not (tmp_path / "tokens").exists()
