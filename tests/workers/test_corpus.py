import os
from pathlib import Path

import pytest

from colony.errors import ConfigError, InvalidInput, NotFound, TargetBlocked
from colony.log import get_logger
from tests.workers.pdf import locked, pdf
from workers.corpus import Corpus
from workers.documents import Folder
from workers.readable import readable

SHIPPED = Path(__file__).parents[2] / "config" / "research" / "documents"


def corpus(root: Path) -> Corpus:
    return Corpus(Folder(root), get_logger("colony.corpus"))


def urls(root: Path, query: str, limit: int = 10) -> list[str]:
    return [hit.url for hit in corpus(root).search(query, limit)[0]]


def test_the_best_document_comes_first_with_its_best_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Cats\n\nCats sleep a lot. A cat hunts mice at night.\n")
    (tmp_path / "b.txt").write_text("Dogs bark. One dog chased a cat.\n")
    (tmp_path / "c.md").write_text("Fish swim.\n")

    hits, total = corpus(tmp_path).search("Which cat hunts mice?", 10)

    assert total == 2
    assert hits[0].url == "file:///a.md"
    assert hits[0].title == "Cats"
    assert hits[0].snippet == "A cat hunts mice at night."
    assert hits[1].title == "b"


def test_html_is_searched_by_its_readable_text(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        "<title>Bread</title><nav>oven</nav><p>Flour and\n water.<script>yeast()</script>"
    )

    assert corpus(tmp_path).search("flour", 1)[0][0].title == "Bread"
    assert urls(tmp_path, "oven yeast") == []


def test_a_pdf_is_searched_by_the_text_of_its_pages(tmp_path: Path) -> None:
    (tmp_path / "honey.pdf").write_bytes(pdf("A queen lays eggs.", "Drones idle.", title="Hive"))
    (tmp_path / "other.md").write_text("Fish swim.")

    [hit] = corpus(tmp_path).search("Who idles?", 10)[0]

    assert (hit.url, hit.title, hit.snippet) == ("file:///honey.pdf", "Hive", "Drones idle.")


def test_a_document_that_cannot_be_read_is_left_out_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.md").write_text("word")
    (tmp_path / "broken.pdf").write_bytes(pdf("word")[:100])
    (tmp_path / "locked.pdf").write_bytes(locked("word"))
    (tmp_path / "none.pdf").write_text("word")
    (tmp_path / "bomb.html").write_text("".join(f"<font x={n}><p>" for n in range(6000)))

    found = corpus(tmp_path)
    for name in ("b.md", "c.md"):
        assert found.search("word", 10)[0][0].url == "file:///a.md"
        (tmp_path / name).write_text("More.")

    lines = [line for line in caplog.messages if "document_left_out" in line]
    assert len(lines) == 4
    for name in ("broken.pdf", "locked.pdf", "none.pdf", "bomb.html"):
        assert sum(name in line for line in lines) == 1


def test_only_a_document_that_changed_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf("word"))
    found = corpus(tmp_path)
    found.refresh()
    status = (tmp_path / "a.pdf").stat()
    # Of the same size and time, so it counts as unchanged though nothing could be read in it.
    (tmp_path / "a.pdf").write_bytes(bytes(status.st_size))
    os.utime(tmp_path / "a.pdf", ns=(status.st_atime_ns, status.st_mtime_ns))
    (tmp_path / "b.md").write_text("word")

    assert {hit.url for hit in found.search("word", 10)[0]} == {"file:///a.pdf", "file:///b.md"}


def test_a_text_in_another_charset_is_searched(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(
        "Пчёлы летают над лугом. Матка откладывает яйца.".encode("cp1251")
    )

    assert urls(tmp_path, "матка") == ["file:///a.txt"]


def test_inflected_words_match(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Keepers were rowing.")

    assert urls(tmp_path, "keeper rows") == ["file:///a.md"]


def test_documents_of_equal_rank_come_by_url(tmp_path: Path) -> None:
    for name in ("c.md", "a.md", "b.md"):
        (tmp_path / name).write_text("The same text.")

    assert urls(tmp_path, "text") == ["file:///a.md", "file:///b.md", "file:///c.md"]


def test_the_limit_cuts_hits_and_not_the_count(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.md").write_text("word")

    hits, total = corpus(tmp_path).search("word", 2)

    assert (len(hits), total) == (2, 5)


@pytest.mark.parametrize("query", ["", "?!", "the of and", "zzz"])
def test_a_query_without_known_words_finds_nothing(tmp_path: Path, query: str) -> None:
    (tmp_path / "a.md").write_text("The end of the story and more.")

    assert corpus(tmp_path).search(query, 10) == ([], 0)


def test_an_empty_corpus_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.md").write_text("")

    assert corpus(tmp_path).search("word", 10) == ([], 0)


def test_a_document_that_comes_changes_or_goes_is_noticed(tmp_path: Path) -> None:
    found = corpus(tmp_path)
    note = tmp_path / "note.md"

    note.write_text("an apple")
    assert found.search("apple", 1)[1] == 1
    before = note.stat().st_mtime_ns
    note.write_text("a melon!")
    os.utime(note, ns=(before, before + 1))
    assert (found.search("apple", 1)[1], found.search("melon", 1)[1]) == (0, 1)
    note.unlink()
    assert found.search("melon", 1)[1] == 0


def test_an_unchanged_corpus_is_not_indexed_again(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("word")
    found = corpus(tmp_path)

    assert found.refresh() is found.refresh()


def test_hidden_foreign_and_unsupported_files_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / ".git").mkdir(parents=True)
    (tmp_path / "outside.md").write_text("word")
    (root / "link.md").symlink_to(tmp_path / "outside.md")
    (root / "dangling.md").symlink_to(tmp_path / "nowhere.md")
    (root / ".git" / "a.md").write_text("word")
    (root / ".a.md").write_text("word")
    (root / "a.docx").write_text("word")
    (root / "deep").mkdir()
    (root / "deep" / "ä b.md").write_text("word")

    assert urls(root, "word") == ["file:///deep/%C3%A4%20b.md"]


def test_a_url_leads_back_to_its_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ä #1?%.md"
    path.parent.mkdir()
    path.write_text("word")
    folder = Folder(tmp_path)

    assert folder.find(folder.url(path)) == path.resolve()
    assert str(tmp_path) not in folder.url(path)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("file:///../secret.md", TargetBlocked),
        ("file:///%2e%2e/secret.md", TargetBlocked),
        ("file:///..%2fsecret.md", TargetBlocked),
        ("file:///link.md", TargetBlocked),
        ("file:///none.md", NotFound),
        ("file:///", NotFound),
        ("file:////etc/passwd", NotFound),
        ("file:///etc/passwd", NotFound),
        ("file://host/a.md", InvalidInput),
        ("file:///a%00.md", InvalidInput),
        ("file:///%ff.md", InvalidInput),
        ("file://[/a.md", InvalidInput),
        ("file:///" + "a" * 5_000, NotFound),
        ("file:///" + "a/" * 5_000, NotFound),
        ("file:///circle.md", NotFound),
        ("file:///circle.md/a", NotFound),
        ("file:///.env", NotFound),
        ("file:///.git/config", NotFound),
        ("file:///deep/.env", NotFound),
        ("file:///deep/../.env", NotFound),
        ("file:///elsewhere/a.md", NotFound),
        ("file:///..", TargetBlocked),
    ],
)
def test_a_url_that_names_no_document_is_refused(
    tmp_path: Path, url: str, error: type[Exception]
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.md").write_text("secret")
    (root / "link.md").symlink_to(tmp_path / "secret.md")
    (root / "circle.md").symlink_to(root / "circle.md")
    for name in (".env", ".git/config", "deep/.env", "deep/a.md"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("secret")
    (root / "elsewhere").symlink_to(root / "deep")
    folder = Folder(root)
    assert [folder.url(path) for path in folder.files()] == ["file:///deep/a.md"]
    assert folder.find("file:///deep/a.md") == root / "deep" / "a.md"

    with pytest.raises(error):
        Folder(root).find(url)


def test_a_relative_folder_is_below_the_directory_of_the_cell(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()

    assert Folder.at("docs", tmp_path).root == (tmp_path / "docs").resolve()
    with pytest.raises(ConfigError, match="no folder here"):
        Folder.at("docs", None)
    with pytest.raises(ConfigError, match="not a folder"):
        Folder.at("none", tmp_path)


def test_readable_text_keeps_structure_and_drops_furniture() -> None:
    page = readable(
        "<head><title> A\n title</title></head><body><nav>menu</nav><main><h1>Head</h1>"
        "<p>some <b>bold</b>\n text<br>more</p><ul><li><p>one</p></li><li>two</li></ul>"
        "<pre>x\n  y</pre><table><tr><td>a</td><td>b</td></tr></table></main><p>left out</p>"
    )

    assert page.title == "A title"
    assert page.text == "# Head\nsome bold text\nmore\n- one\n- two\nx\n  y\na b"


@pytest.mark.parametrize("html", ["", "<", "\0", "plain", "<!--", "<body><svg><title>x"])
def test_any_input_is_a_page(html: str) -> None:
    readable(html)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("Who built the third tower of Eddystone?", "eddystone.md"),
        ("Which lighthouse first used a Fresnel lens?", "fresnel-lens.md"),
        ("Who won the Nobel Prize for a gas valve?", "dalen-sun-valve.md"),
        ("Which keepers disappeared?", "flannan-isles.md"),
        ("What sank the Nantucket lightship?", "lightships.md"),
        ("Who was the first keeper of Boston Light?", "boston-light.md"),
    ],
)
def test_a_question_about_the_shipped_documents_finds_its_document(query: str, name: str) -> None:
    hits, _ = corpus(SHIPPED).search(query, 3)

    assert f"file:///{name}" in [hit.url for hit in hits]
    assert all(hit.snippet for hit in hits)


def test_initials_and_titles_do_not_end_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text('Dr. J. Smith said "Go." He went home. The end came.')

    [hit] = corpus(tmp_path).search("Smith said", 1)[0]

    assert hit.snippet == 'Dr. J. Smith said "Go."'
