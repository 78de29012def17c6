"""PDF: the title and the text of the pages of a document, run as a program."""

import io
import logging

from pypdf import PasswordType, PdfReader
from pypdf.errors import DependencyError, PyPdfError

from workers.reader import Locked, Parts, read_stdin

_PAGES = 2_000


def pages(data: bytes) -> Parts:
    """The title of a PDF, then the text of each page; None for one that cannot be read.

    Raises Locked where it takes a password, and anything at all where the file is broken.
    """
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted:
        _unlock(reader)
    yield _title(reader)
    for number, page in enumerate(reader.pages):
        if number == _PAGES:
            yield None
            return
        try:
            yield page.extract_text()
        # The library says that a broken file may raise anything; the other pages may be whole.
        except Exception:
            yield None


def _unlock(reader: PdfReader) -> None:
    """Most locks only forbid to print or to copy; the password is empty then."""
    try:
        unlocked = reader.decrypt("") != PasswordType.NOT_DECRYPTED
    except (DependencyError, PyPdfError, NotImplementedError):
        unlocked = False
    if not unlocked:
        raise Locked


def _title(reader: PdfReader) -> str:
    try:
        title = reader.metadata and reader.metadata.title
    except (PyPdfError, ValueError, TypeError, AttributeError, KeyError):
        title = None
    return " ".join(title.split()) if isinstance(title, str) else ""


def main() -> None:
    """Read one PDF on stdin within the limits."""
    logging.disable()
    read_stdin(pages)


if __name__ == "__main__":
    main()
