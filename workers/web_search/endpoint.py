"""The endpoint: a search service asked over HTTP."""

import json

import httpx
from pydantic import JsonValue

from colony.errors import Unreadable
from workers.http_body import read_body
from workers.tool_call import Answer
from workers.web_search.results import Caps

REPLY_LIMIT = 8 << 20


class Endpoint:
    """A service that answers `GET url?q=query` with `{"results": [{title, url, snippet}]}`.

    One that has `content` in the place of `snippet`, as SearXNG has, is understood too.

    The operator chose it, so it may be anywhere; time is limited by the caller.
    """

    def __init__(self, url: str, api_key: str, caps: Caps) -> None:
        self._url = httpx.URL(url)
        self._caps = caps
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        headers["Accept-Encoding"] = "gzip, deflate"
        self._client = httpx.AsyncClient(headers=headers, timeout=None)

    async def search(self, query: str) -> Answer:
        """What the service found. A reply of another shape is passed on as it is."""
        data = await self._ask(query)
        reply = _parsed(data)
        results = reply.get("results") if isinstance(reply, dict) else None
        if isinstance(reply, dict) and isinstance(results, list):
            found = [_in_our_words(result) for result in results]
            return self._caps.fit(reply, found, total=len(found), size=len(data))
        text = data.decode(errors="replace")
        return Answer.capped(text, max_bytes=self._caps.max_bytes, result_count=0)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _ask(self, query: str) -> bytes:
        url = self._url.copy_merge_params({"q": query})
        try:
            async with self._client.stream("GET", url) as response:
                if not response.is_success:
                    status = response.status_code
                    raise Unreadable(
                        detail=f"the search service answered HTTP {status}",
                        hop={"http_status": status},
                    )
                body = await read_body(response, limit=REPLY_LIMIT)
        except httpx.HTTPError as error:
            raise Unreadable(
                detail=f"the search service: {error or type(error).__name__}"
            ) from error
        if body.cut:
            raise Unreadable(
                detail=f"the search service answered with more than {REPLY_LIMIT} bytes"
            )
        return body.head


def _in_our_words(result: JsonValue) -> JsonValue:
    """A result of SearXNG without what it says to itself; any other as it is."""
    if not isinstance(result, dict) or "snippet" in result or "content" not in result:
        return result
    return {
        "title": result.get("title"),
        "url": result.get("url"),
        "snippet": result["content"] or "",
    }


def _parsed(data: bytes) -> JsonValue:
    try:
        parsed: JsonValue = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return parsed
