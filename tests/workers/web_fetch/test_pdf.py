"""PDFs, fetched and read below a root: whatever one is, its call is answered."""

import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.workers.pdf import locked, page, pdf, stream, written
from tests.workers.web_fetch.reading import ask, fetch, reader, text
from tests.workers.web_server import Reply, WebServer, serving
from workers.extraction import PDF_LIMIT

PDF = {"Content-Type": "application/pdf"}
FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
PAGES = b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>"


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with serving() as running:
        yield running


@pytest.mark.parametrize(
    "content_type",
    ["application/pdf", "application/x-pdf; x=y", "application/octet-stream", ""],
)
async def test_a_pdf_is_given_as_the_text_of_its_pages(
    server: WebServer, content_type: str
) -> None:
    headers = {"Content-Type": content_type}
    server.replies["/a"] = Reply(pdf("Hello world.", "The end.", title="A  title"), headers=headers)

    emission = await fetch(server.url("/a"))

    assert text(emission) == "A title\n\nHello world.\n\nThe end."
    assert emission.hop["bytes"] == len(text(emission))
    assert "truncated" not in emission.hop


async def test_a_pdf_below_the_root_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf("Hello world."))

    async with reader(root=str(tmp_path)) as cell:
        emission = await ask(cell, "file:///a.pdf")

    assert text(emission) == "Hello world."
    assert emission.hop["content_type"] == "application/pdf"


async def test_the_text_of_a_pdf_is_cut_at_the_cap(server: WebServer) -> None:
    server.replies["/a"] = Reply(pdf("Hello world."), headers=PDF)

    emission = await fetch(server.url("/a"), max_bytes=5)

    assert text(emission) == "Hello… [truncated, 12 bytes total]"


async def test_a_lock_without_a_password_only_forbids_to_print(server: WebServer) -> None:
    server.replies["/a"] = Reply(locked("Hello world.", password=""), headers=PDF)

    assert text(await fetch(server.url("/a"))) == "Hello world."


async def test_an_encrypted_pdf_is_an_error_that_says_so(server: WebServer) -> None:
    server.replies["/a"] = Reply(locked("Hello world."), headers=PDF)

    emission = await fetch(server.url("/a"))

    assert emission.hop["error_code"] == "io_error"
    assert "encrypted" in text(emission)


BOMB = zlib.compress(zlib.compress(bytes(1 << 30), 9), 9)

FOR_EVER = written(
    [
        *(CATALOG, b"<< /Type /Pages /Kids [%s] /Count 50 >>" % (b"4 0 R " * 50), FONT),
        *(page(content=5), stream(b"BT /F1 12 Tf " + b"(x) Tj " * 2_000_000), b"<<>>"),
    ]
)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"%PDF-1.7\n", id="header"),
        pytest.param(b"<p>no PDF", id="html"),
        pytest.param(pdf("Hello world.")[:300], id="cut"),
        pytest.param(b"%PDF-1.4\n" + b"<<" * 100_000, id="nested"),
        pytest.param(
            written([CATALOG, b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 >>", b"<<>>"]),
            id="pages in a circle",
        ),
        pytest.param(
            written(
                [
                    *(CATALOG, PAGES, FONT, page(content=5)),
                    stream(BOMB, filters="/Filter [/FlateDecode /FlateDecode]"),
                    b"<<>>",
                ]
            ),
            id="decompresses to a gigabyte",
        ),
        pytest.param(
            FOR_EVER,
            id="takes for ever",
        ),
    ],
)
async def test_a_pdf_that_is_broken_or_hostile_is_an_error(server: WebServer, data: bytes) -> None:
    server.replies["/a"] = Reply(data, headers=PDF)

    emission = await fetch(server.url("/a"), external_timeout_ms=60_000)

    assert emission.hop["error_code"] == "io_error"
    assert emission.body.entries[0].is_error


async def test_of_a_pdf_with_a_page_that_cannot_be_read_the_others_are(server: WebServer) -> None:
    objects = [
        *(CATALOG, b"<< /Type /Pages /Kids [4 0 R 6 0 R] /Count 2 >>", FONT),
        *(page(content=5), stream(b"BT /F1 12 Tf (Hello) Tj ET")),
        *(page(content=7), stream(BOMB, filters="/Filter [/FlateDecode /FlateDecode]")),
    ]
    server.replies["/a"] = Reply(written([*objects, b"<<>>"]), headers=PDF)

    emission = await fetch(server.url("/a"))

    assert text(emission) == "Hello… [truncated, at least 5 bytes]"
    assert emission.hop["truncated"] is True


async def test_a_pdf_of_more_pages_than_the_limit_is_read_to_it(server: WebServer) -> None:
    objects = [
        *(CATALOG, b"<< /Type /Pages /Kids [%s] /Count 2500 >>" % b" ".join([b"4 0 R"] * 2500)),
        *(FONT, page(content=5), stream(b"BT /F1 12 Tf (Hello) Tj ET"), b"<<>>"),
    ]
    server.replies["/a"] = Reply(written(objects), headers=PDF)

    emission = await fetch(server.url("/a"), external_timeout_ms=60_000)

    assert emission.hop["truncated"] is True
    assert "at least" in text(emission)
    assert 0 < text(emission).count("Hello") <= 2000


@pytest.mark.parametrize("length", [True, False])
async def test_a_pdf_over_the_limit_is_an_error(server: WebServer, length: bool) -> None:
    server.replies["/a"] = Reply(b"%PDF-1.4\n" + bytes(PDF_LIMIT), headers=PDF, length=length)

    emission = await fetch(server.url("/a"))

    assert emission.hop["error_code"] == "io_error"
    assert str(PDF_LIMIT) in text(emission)


async def test_reading_ends_with_the_call(server: WebServer) -> None:
    server.replies["/a"] = Reply(FOR_EVER, headers=PDF)

    emission = await fetch(server.url("/a"), external_timeout_ms=500)

    assert emission.hop["error_code"] == "timeout"
