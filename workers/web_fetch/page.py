"""Pages: what an http or https URL leads to, redirects followed."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from colony.errors import InvalidInput, InvalidRedirect, TooManyRedirects, Unreadable
from workers.http_body import HttpBody, read_body

Limit = Callable[[str], int]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What a server writes at length must not make headers that no envelope can hold.
_URL_LIMIT, _TYPE_LIMIT = 4096, 256
_CHARSET = re.compile(r"[\w.:-]{1,40}", re.ASCII)
_HOST = re.compile(rb"[a-z0-9._-]+|[0-9a-f:.]+", re.IGNORECASE)
_HEADERS = {
    "User-Agent": "colony web_fetch",
    "Accept": "text/html, text/*;q=0.9, */*;q=0.5",
    "Accept-Encoding": "identity",
}


@dataclass(frozen=True)
class Page:
    """A response, whatever its status; `url` is where the redirects ended, as far as it fits."""

    url: str
    redirects: int
    status: int
    content_type: str
    charset: str | None
    body: HttpBody


async def get(
    transport: httpx.AsyncBaseTransport, url: httpx.URL, *, max_redirects: int, limit: Limit
) -> Page:
    """The page at `url`, of its body at most the first bytes: `limit` says how many of its type.

    Each redirect is a request of its own, screened by the transport like the first. Raises
    ToolError where there is no page.
    """
    for redirects in range(max_redirects + 1):
        request = httpx.Request("GET", url, headers=_HEADERS)
        try:
            response = await transport.handle_async_request(request)
            try:
                if response.status_code not in _REDIRECTS:
                    body = await read_body(response, limit=limit(_content_type(response)))
                    return _page(url, redirects, response, body)
                url = _follow(url, response.headers.get("location"))
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise Unreadable(detail=f"{url.host}: {error}") from error
    raise TooManyRedirects(limit=max_redirects)


def parse_url(written: str) -> httpx.URL:
    """The http or https URL that `written` is; raises InvalidInput otherwise."""
    try:
        url = httpx.URL(written)
    except httpx.InvalidURL as error:
        raise InvalidInput(detail=f"{written!r} is not a URL: {error}") from None
    problem = _problem(url)
    if problem:
        raise InvalidInput(detail=f"{written!r} cannot be fetched: {problem}")
    return url


def _follow(url: httpx.URL, location: str | None) -> httpx.URL:
    try:
        target = url.join(location or "")
    except httpx.InvalidURL as error:
        raise InvalidRedirect(url=url, location=location, detail=error) from None
    problem = _problem(target) if location else "it does not say where to"
    if url.scheme == "https" and target.scheme == "http":
        problem = "https must not become http"
    if problem:
        raise InvalidRedirect(url=url, location=location, detail=problem)
    return target


def _problem(url: httpx.URL) -> str | None:
    if url.scheme not in ("http", "https"):
        return "only http and https are"
    try:
        host = url.host
    except UnicodeError as error:  # Read from punycode whenever it is asked for.
        return f"its host is no name: {error}"
    if not host:
        return "it names no host"
    # Escapes, zones and what is no letter mean one host to one reader and another to the next.
    if not _HOST.fullmatch(url.raw_host):
        return "its host is no name"
    if url.port is not None and not 0 < url.port < 65_536:
        return "there is no such port"
    # A user name that looks like a host is an old trick, and a password would end up in a record.
    return "it holds a user name" if url.userinfo else None


def _page(url: httpx.URL, redirects: int, response: httpx.Response, body: HttpBody) -> Page:
    charset = response.charset_encoding
    return Page(
        url=str(url)[:_URL_LIMIT],
        redirects=redirects,
        status=response.status_code,
        content_type=_content_type(response),
        charset=charset if charset and _CHARSET.fullmatch(charset) else None,
        body=body,
    )


def _content_type(response: httpx.Response) -> str:
    written: str = response.headers.get("content-type", "")
    return written.partition(";")[0].strip().lower()[:_TYPE_LIMIT]
