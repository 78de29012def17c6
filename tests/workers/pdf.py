"""PDFs for tests, written by hand."""

import io
from collections.abc import Sequence

from pypdf import PdfReader, PdfWriter


def pdf(*pages: str, title: str = "") -> bytes:
    """A PDF of pages that say one line each."""
    kids = " ".join(f"{2 * number + 4} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode("latin-1")
        objects += [page(content=2 * number + 5), stream(content)]
    return written([*objects, f"<< /Title ({title}) >>".encode()])


def page(*, content: int) -> bytes:
    return (
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792]"
        f" /Resources << /Font << /F1 3 0 R >> >> /Contents {content} 0 R >>"
    ).encode()


def stream(data: bytes, *, filters: str = "") -> bytes:
    return f"<< /Length {len(data)} {filters} >>\nstream\n".encode() + data + b"\nendstream"


def written(objects: Sequence[bytes]) -> bytes:
    """The file of some objects, the first of them the catalog and the last what describes it."""
    file, places = bytearray(b"%PDF-1.4\n"), []
    for number, content in enumerate(objects, 1):
        places.append(len(file))
        file += f"{number} 0 obj\n".encode() + content + b"\nendobj\n"
    start = len(file)
    file += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    for place in places:
        file += f"{place:010} 00000 n \n".encode()
    size = len(objects) + 1
    trailer = f"<< /Size {size} /Root 1 0 R /Info {len(objects)} 0 R >>"
    return bytes(file) + f"trailer\n{trailer}\nstartxref\n{start}\n%%EOF\n".encode()


def locked(*pages: str, password: str = "secret") -> bytes:
    """A PDF that takes a password to be read."""
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf(*pages))))
    writer.encrypt(password, "owner", algorithm="RC4-128")
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()
