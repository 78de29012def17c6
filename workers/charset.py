"""Charsets: which characters the bytes of a document stand for.

A byte order mark is believed first, then what was declared, unless the bytes are plainly something
else; where nothing was, they are UTF-8 or what detection makes of them. It never fails.
"""

import codecs
import re

from charset_normalizer import from_bytes

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_META = re.compile(rb"<meta[^>]{0,200}charset=[\"']?\s*([\w:-]{1,40})", re.IGNORECASE)
_XML = re.compile(rb"<\?xml[^>]{0,100}encoding=[\"']([\w:-]{1,40})", re.IGNORECASE)
# Where a browser reads a superset of what is declared, pages are written in the superset.
_SUPERSETS = {
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "shift_jis": "cp932",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "tis-620": "cp874",
}
# Escapes are no charsets, and Python decodes punycode in a time quadratic in its length.
_NO_CHARSETS = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined"})
# What servers declare who were told nothing. Any bytes are text in it.
_DEFAULT = "cp1252"
# Of the characters in a declared charset, so many may be wrong before it is not believed.
_STRAY = 0.005
_DETECTABLE = (
    *("cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874"),
    *("koi8_r", "koi8_u", "mac_cyrillic", "iso8859_2", "iso8859_5"),
    *("cp932", "euc_jp", "gb18030", "big5", "cp949"),
)
_SAMPLE = 32_768
# Fewer bytes outside of ASCII say nothing of a language.
_FEW = 4


def decode(data: bytes, declared: str | None) -> str:
    """The characters of a text whose charset was `declared` outside of it, as by a header."""
    return _decode(data, _codecs(declared))


def decode_page(data: bytes, declared: str | None) -> str:
    """The characters of a page of HTML, which may declare a charset of its own."""
    inside = _META.search(data, 0, 2048) or _XML.match(data)
    own = _codecs(inside and inside[1].decode())
    # What could be read in ASCII to this point is in no charset of wider units.
    return _decode(data, [*_codecs(declared), *(name for name in own if "utf-16" not in name)])


def _decode(data: bytes, declared: list[str]) -> str:
    for mark, codec in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(codec, errors="replace")
    for codec in declared:
        text = _utf8(data) if codec == _DEFAULT else None
        text = text if text is not None else _believed(data, codec)
        if text is not None:
            return text
    text = _utf8(data)
    if text is not None:
        return text
    return data.decode(_detected(data) or [*declared, "utf-8"][0], errors="replace")


def _codecs(name: str | None) -> list[str]:
    try:
        codec = codecs.lookup(name or "").name
        # Of nothing at all, anything would be a charset.
        b"x".decode(codec, errors="replace")
    except (LookupError, ValueError):
        return []
    return [] if codec in _NO_CHARSETS else [_SUPERSETS.get(codec, codec)]


def _believed(data: bytes, codec: str) -> str | None:
    try:
        return data.decode(codec)
    except ValueError:
        text = data.decode(codec, errors="replace")
    return text if text.count("\ufffd") <= len(text) * _STRAY else None


def _utf8(data: bytes) -> str | None:
    try:
        # The last character may be cut.
        text, read = codecs.utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return None
    return text + "\ufffd" * (read < len(data))


def _detected(data: bytes) -> str | None:
    if b"\0" in data[:_SAMPLE]:
        return None
    sample = data[:_SAMPLE]
    if len(data) > _SAMPLE:
        # No charset has a character that spans lines.
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    if sum(byte > 127 for byte in sample) < _FEW:
        return _DEFAULT
    best = from_bytes(sample, cp_isolation=[*_DETECTABLE]).best()
    return best.encoding if best else None
