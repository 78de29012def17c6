from collections.abc import AsyncIterator

import pytest

from tests.workers.web_fetch.reading import fetch, text
from tests.workers.web_server import Reply, WebServer, serving
from workers.charset import decode, decode_page

RUSSIAN = "Пчёлы летают над лугом, а матка откладывает яйца."  # noqa: RUF001
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
GERMAN = "Die Bienen fliegen über die grüne Wiese, und die Königin schläft."
POLISH = "Pszczoły latają nad łąką, a królowa składa jaja. Zażółć gęślą jaźń."


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with serving() as running:
        yield running


@pytest.mark.parametrize(
    ("written", "codec", "declared"),
    [
        (RUSSIAN, "utf-8", None),
        (RUSSIAN, "utf-8", "utf-8"),
        (RUSSIAN, "utf-8-sig", None),
        (RUSSIAN, "utf-16", None),
        (RUSSIAN, "utf-32", None),
        (RUSSIAN, "utf-16-be", "utf-16-be"),
        (RUSSIAN, "cp1251", "windows-1251"),
        (RUSSIAN, "cp1251", None),
        (RUSSIAN, "koi8-r", None),
        (POLISH, "cp1250", None),
        (GERMAN, "latin-1", "iso-8859-1"),
        (GERMAN, "latin-1", "LATIN1"),
        ("“quoted”", "cp1252", "iso-8859-1"),
        ("grün", "latin-1", None),
        (JAPANESE, "shift_jis", "shift_jis"),
        (JAPANESE * 2000, "euc_jp", None),
        ("①", "cp932", "shift_jis"),
        ("我是猫。" * 9, "gb18030", "gb2312"),
        # A declaration that is plainly wrong, or is none.
        (RUSSIAN, "cp1251", "utf-8"),
        (RUSSIAN, "cp1251", "us-ascii"),
        (RUSSIAN, "utf-8", "us-ascii"),
        (RUSSIAN, "utf-8", "iso-8859-1"),
        (RUSSIAN, "utf-8", "windows-1252"),
        (RUSSIAN, "utf-16", "utf-8"),
        (RUSSIAN, "utf-8-sig", "windows-1251"),
        (RUSSIAN, "utf-8", "no-such-charset"),
        (RUSSIAN, "utf-8", "undefined"),
        (RUSSIAN, "utf-8", "zlib"),
        (RUSSIAN, "utf-8", "punycode"),
        (RUSSIAN, "utf-8", "unicode_escape"),
        (RUSSIAN, "utf-8", "\0"),
        ("", "utf-8", None),
    ],
)
def test_a_text_is_read_in_its_charset(written: str, codec: str, declared: str | None) -> None:
    assert decode(written.encode(codec), declared) == written


@pytest.mark.parametrize(
    ("head", "written", "codec", "declared"),
    [
        ('<meta charset="shift_jis">', JAPANESE, "shift_jis", None),
        ("<meta charset=shift_jis>", JAPANESE, "shift_jis", "utf-8"),
        ('<meta http-equiv=x content="text/html; charset=koi8-r">', RUSSIAN, "koi8-r", None),
        ('<?xml version="1.0" encoding="windows-1251"?>', RUSSIAN, "cp1251", None),
        ('<meta charset="iso-8859-1">', GERMAN, "latin-1", None),
        ('<meta charset="iso-8859-1">', RUSSIAN, "utf-8", "utf-8"),
        ('<meta charset="utf-16">', RUSSIAN, "utf-8", None),
        ('<meta charset="utf-8">', RUSSIAN, "cp1251", "windows-1251"),
        ('<meta charset="utf-8">', RUSSIAN, "cp1251", None),
        ("<p>", RUSSIAN, "cp1251", None),
    ],
)
def test_a_page_may_say_its_charset_itself(
    head: str, written: str, codec: str, declared: str | None
) -> None:
    assert decode_page((head + written).encode(codec), declared) == head + written


def test_a_text_does_not_say_its_charset_itself() -> None:
    written = f"<meta charset=koi8-r> {RUSSIAN}"

    assert decode(written.encode("cp1251"), None) == written


def test_stray_bytes_do_not_make_a_declaration_a_lie() -> None:
    data = RUSSIAN.encode() * 50 + b"\xff" + RUSSIAN.encode()

    assert decode(data, "utf-8") == RUSSIAN * 50 + "\ufffd" + RUSSIAN


def test_a_character_that_is_cut_is_not_what_the_rest_is_judged_by() -> None:
    data = RUSSIAN.encode()[:-2]

    assert decode(data[:1] + data, None) != RUSSIAN
    assert decode("xя".encode()[:-1], None) == "x\ufffd"


@pytest.mark.parametrize("data", [bytes(range(256)) * 9, b"\x89PNG\r\n\x1a\n\0\xff\xfe" * 99])
def test_what_is_no_text_is_read_with_losses(data: bytes) -> None:
    assert "\ufffd" in decode(data, None)


@pytest.mark.parametrize(
    ("content_type", "codec"),
    [
        ("text/plain", "cp1251"),
        ("text/plain; charset=utf-8", "cp1251"),
        ("text/plain; charset=koi8-r", "koi8-r"),
        ("text/html", "cp1251"),
        ("text/html; charset=koi8-r", "koi8-r"),
        ("text/html; charset=-x", "cp1251"),
    ],
)
async def test_the_charset_of_what_is_fetched_is_that_of_its_header_or_found(
    server: WebServer, content_type: str, codec: str
) -> None:
    server.replies["/a"] = Reply(RUSSIAN.encode(codec), headers={"Content-Type": content_type})

    assert text(await fetch(server.url("/a"))) == RUSSIAN
