"""The demo: which documents and which model it takes."""

from pathlib import Path

import pytest

from colony.cli.demo import NEXT, onward
from colony.demo import DOCUMENTS, environment_of, model_of
from colony.errors import ConfigError
from colony.log import get_logger
from workers.corpus import Corpus
from workers.documents import Folder


@pytest.mark.parametrize("suffix", [*sorted(DOCUMENTS), ".MD", ".png", ".json"])
def test_a_folder_is_taken_where_the_searching_cell_finds_documents(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / f"otters{suffix}").write_text("Otters hold hands.")
    hits, _ = Corpus(Folder(tmp_path), get_logger("colony.test")).search("otters", 1)

    if hits:
        assert environment_of({}, tmp_path)["COLONY_CORPUS"] == str(tmp_path)
    else:
        with pytest.raises(ConfigError, match="no documents"):
            environment_of({}, tmp_path)


@pytest.mark.parametrize(
    ("variables", "model"),
    [
        ({}, "extractive"),
        ({"OPENAI_API_KEY": "k"}, "gpt-4o-mini at https://api.openai.com/v1"),
        ({"COLONY_BASE_URL": "http://u:p@host:1/v1", "COLONY_MODEL": "m"}, "m at http://host:1/v1"),
    ],
)
def test_the_model_is_named_without_a_secret(variables: dict[str, str], model: str) -> None:
    assert model_of(environment_of(variables, None)) == model


@pytest.mark.parametrize(
    ("venv", "path", "told"),
    [
        ("/src/.venv", "/usr/bin:/bin", "next: `. .venv/bin/activate`, then "),
        ("/opt/a b", "/usr/bin:/bin", "next: `. '/opt/a b/bin/activate'`, then "),
        ("/src/.venv", "/src/.venv/bin:/bin", "next: "),
        (None, "/usr/bin", "next: "),
    ],
)
def test_what_is_next_can_be_typed_as_it_stands(venv: str | None, path: str, told: str) -> None:
    shown = onward(None if venv is None else Path(venv), path, Path("/src"))

    assert shown == told + NEXT
