"""Summaries: the text that stands for rounds, and behind it where long results are kept whole.

A model that folds may leave a handle out. What is named behind its text is carried from fold to
fold.
"""

from workers.toolloop.kept import Named


def with_kept(text: str, kept: Named) -> str:
    """A summary with what its rounds have kept named behind it."""
    said, _ = parted(text)
    return f"{said}\n\n[{kept.text}]" if kept.sizes else text


def parted(text: str) -> tuple[str, Named]:
    """What a summary says, and what is named behind it."""
    said, _, last = text.rpartition("\n\n")
    kept = Named.read(last.removeprefix("[").removesuffix("]"))
    return (said, kept) if kept.sizes else (text, kept)
