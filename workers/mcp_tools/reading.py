"""Reading: what a server's result says to a model.

Text is passed on. What is no text is named with its type and size, and left out.
"""

import json
from collections.abc import Iterator, Sequence

import mcp_types as types


def text_of(result: types.CallToolResult) -> str:
    """The texts of a result, a line after another; of one without any, its structured content."""
    texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
    others = [*_named(result.content)]
    if not any(texts) and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join([*texts, *others])


def _named(content: Sequence[types.ContentBlock]) -> Iterator[str]:
    for block in content:
        if isinstance(block, types.ImageContent | types.AudioContent):
            yield _left_out(block.type, block.mime_type, size=_decoded_size(block.data))
        elif isinstance(block, types.ResourceLink):
            yield _left_out("link", block.mime_type, uri=block.uri, size=block.size)
        elif isinstance(block, types.EmbeddedResource):
            yield _resource(block.resource)


def _resource(resource: types.TextResourceContents | types.BlobResourceContents) -> str:
    if isinstance(resource, types.TextResourceContents):
        # What servers hand out of a repository or a page is such a text.
        return f"[resource {resource.uri}]\n{resource.text}"
    size = _decoded_size(resource.blob)
    return _left_out("resource", resource.mime_type, uri=resource.uri, size=size)


def _left_out(kind: str, mime_type: str | None, *, uri: str = "", size: int | None) -> str:
    measure = "size unknown" if size is None else f"{size} bytes"
    named = " ".join(filter(None, (kind, uri, mime_type)))
    return f"[{named}, {measure}, not shown]"


def _decoded_size(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")
