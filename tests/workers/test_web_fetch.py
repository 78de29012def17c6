import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpcore
import httpx
import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.errors import ConfigError, InvalidRedirect, TargetBlocked, Unreadable
from colony.testing.host import RecordingHost
from tests.workers.web_server import Reply, WebServer, serving
from workers.web_fetch import WebFetch
from workers.web_fetch.cell import PAGE_LIMIT
from workers.web_fetch.page import get
from workers.web_fetch.screen import Resolver, Screen, system_resolver
from workers.web_fetch.transport import ScreenedTransport

PUBLIC = "93.184.216.34"


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with serving() as running:
        yield running


@asynccontextmanager
async def reader(
    directory: Path | None = None, *, resolve: Resolver = system_resolver, **params: object
) -> AsyncIterator[WebFetch]:
    cell = WebFetch(WebFetch.Params.model_validate(params), resolve=resolve)
    await cell.start(RecordingHost.of("web_fetch", directory=directory))
    try:
        yield cell
    finally:
        await cell.stop()


async def ask(cell: WebFetch, url: str) -> Emission:
    body = Body.of(Entry.call("call-1", {"url": url}))
    envelope = Envelope(id="e", trace_id="t", target="/reader", ttl=9, body=body)
    [emission] = await cell.handle(envelope, RecordingHost.of("web_fetch"))
    [entry] = emission.body.entries
    assert (entry.type, entry.id) == ("tool_result", "call-1")
    assert emission.hop["operation"] == "web_fetch"
    return emission


async def fetch(url: str, **params: object) -> Emission:
    async with reader(allow_private_networks=True, **params) as cell:
        return await ask(cell, url)


def text(emission: Emission) -> str:
    return emission.body.entries[0].text or ""


def resolving(*answers: Sequence[str]) -> Resolver:
    """A resolver that gives these answers one after the other, the last one for ever."""
    left = [*answers]

    async def resolve(host: str) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


class Wire(httpcore.AsyncNetworkBackend):
    """A network on which every address is this machine, except those that are down."""

    def __init__(self, *down: str) -> None:
        self.connected: list[str] = []
        self._down = down

    async def connect_tcp(self, host, port, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.connected.append(host)
        if host in self._down:
            raise httpcore.ConnectError("down")
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", port)


async def test_a_text_is_fetched_with_its_counters(server: WebServer) -> None:
    server.replies["/a"] = Reply("grün".encode(), headers={"Content-Type": "text/plain; x=y"})

    emission = await fetch(server.url("/a"))

    assert text(emission) == "grün"
    duration = emission.hop.pop("duration_ms")
    assert isinstance(duration, int)
    assert emission.hop == {
        "operation": "web_fetch",
        "http_status": 200,
        "content_type": "text/plain",
        "bytes": 5,
    }


async def test_html_is_given_as_readable_text(server: WebServer) -> None:
    html = b"<title>T</title><nav>menu</nav><h1>Head</h1><p>one\ntwo</p><script>x</script>"
    server.replies["/a"] = Reply(html, headers={"Content-Type": "text/html; charset=utf-8"})

    emission = await fetch(server.url("/a"))

    assert text(emission) == "T\n\n# Head\none two"
    assert emission.hop["bytes"] == len(text(emission))


async def test_a_page_that_chokes_a_parser_is_an_error(server: WebServer) -> None:
    bomb = "".join(f"<font x={n}><p>" for n in range(6000)).encode()
    server.replies["/a"] = Reply(bomb, headers={"Content-Type": "text/html"})

    emission = await fetch(server.url("/a"))

    assert emission.hop["error_code"] == "io_error"


async def test_a_page_over_the_cap_keeps_its_head_and_says_how_much_there_is(
    server: WebServer,
) -> None:
    server.replies["/a"] = Reply("ä".encode() * 500, headers={"Content-Type": "text/plain"})

    emission = await fetch(server.url("/a"), max_bytes=9)

    assert text(emission) == "ääää… [truncated, 1000 bytes total]"
    assert (emission.hop["truncated"], emission.hop["bytes"]) == (True, 1000)


@pytest.mark.parametrize("length", [True, False])
async def test_a_page_over_the_reading_limit_is_counted_and_not_kept(
    server: WebServer, length: bool
) -> None:
    server.replies["/a"] = Reply(b"x" * (PAGE_LIMIT + 1000), length=length)

    emission = await fetch(server.url("/a"), max_bytes=3)

    assert text(emission) == f"xxx… [truncated, {PAGE_LIMIT + 1000} bytes total]"
    assert emission.hop["bytes"] == PAGE_LIMIT + 1000


async def test_a_compressed_page_is_decompressed(server: WebServer) -> None:
    data = gzip.compress(b"hello " * 1000)
    server.replies["/a"] = Reply(data, headers={"Content-Encoding": "gzip"})

    emission = await fetch(server.url("/a"), max_bytes=5)

    assert text(emission) == "hello… [truncated, 6000 bytes total]"


async def test_another_status_is_a_result_like_any_other(server: WebServer) -> None:
    emission = await fetch(server.url("/none"))

    assert text(emission) == "nothing here"
    assert emission.hop["http_status"] == 404
    assert "error_code" not in emission.hop


async def test_a_redirect_is_followed_and_named(server: WebServer) -> None:
    server.replies["/a"] = Reply(status=302, headers={"Location": "b?x=1#part"})
    server.replies["/b"] = Reply(b"there")

    emission = await fetch(server.url("/a"))

    assert text(emission) == "there"
    assert emission.hop["redirects"] == 1
    assert str(emission.hop["final_url"]).startswith(server.url("/b?x=1"))
    assert server.requests[1].startswith("GET /b?x=1 HTTP/1.1")


def chain(server: WebServer, redirects: int) -> str:
    for number in range(redirects):
        server.replies[f"/{number}"] = Reply(status=301, headers={"Location": f"/{number + 1}"})
    server.replies[f"/{redirects}"] = Reply(b"end")
    return server.url("/0")


async def test_five_redirects_lead_to_the_page(server: WebServer) -> None:
    assert text(await fetch(chain(server, 5))) == "end"


async def test_six_redirects_are_too_many(server: WebServer) -> None:
    emission = await fetch(chain(server, 6))

    assert emission.hop["error_code"] == "too_many_redirects"
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    "location",
    [
        "http://xn--/",
        None,
        "",
        "file:///etc/passwd",
        "ftp://x/",
        "http://u:p@x/",
        "http://h:x/",
        "http://h:0/",
    ],
)
async def test_a_redirect_that_leads_nowhere_is_invalid(
    server: WebServer, location: str | None
) -> None:
    headers = {} if location is None else {"Location": location}
    server.replies["/a"] = Reply(status=302, headers=headers)

    emission = await fetch(server.url("/a"))

    assert emission.hop["error_code"] == "invalid_redirect"


async def test_https_never_becomes_http() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"Location": "http://example.test/"})

    transport = httpx.MockTransport(respond)

    with pytest.raises(InvalidRedirect, match="https must not become http"):
        await get(transport, httpx.URL("https://example.test/"), max_redirects=5, limit=10)


async def test_no_cookie_is_ever_sent(server: WebServer) -> None:
    server.replies["/a"] = Reply(status=302, headers={"Location": "/b", "Set-Cookie": "id=1"})
    server.replies["/b"] = Reply(b"there", headers={"Set-Cookie": "id=2"})

    async with reader(allow_private_networks=True) as cell:
        await ask(cell, server.url("/a"))
        await ask(cell, server.url("/a"))

    assert not any("cookie" in request.lower() for request in server.requests)


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "x",
        "//host/",
        "ftp://host/",
        "javascript:alert(1)",
        "http://",
        "http:///path",
        "http://user@host/",
        "http://[::1",
        "http://host:99999/",
        "http://xn--/",
        "http://xn--a-ecp.ru/",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
    ],
)
async def test_a_url_that_cannot_be_fetched_is_invalid(url: str) -> None:
    assert (await fetch(url)).hop["error_code"] == "invalid_input"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://a..b/", f"http://{'a' * 64}.test/"])
async def test_a_host_that_cannot_be_reached_is_an_error(url: str) -> None:
    assert (await fetch(url)).hop["error_code"] in ("io_error", "invalid_input")


async def test_a_server_that_hangs_is_a_timeout(server: WebServer) -> None:
    server.replies["/a"] = Reply(b"begin", length=False, hang=True)

    emission = await fetch(server.url("/a"), external_timeout_ms=100)

    assert emission.hop["error_code"] == "timeout"


async def test_a_server_that_breaks_off_is_an_error(server: WebServer) -> None:
    headers = {"Content-Length": "100"}
    server.replies["/a"] = Reply(b"begin", headers=headers, length=False)

    assert (await fetch(server.url("/a"))).hop["error_code"] == "io_error"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0/",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.1.2.3/",
        "http://172.31.0.1/",
        "http://192.168.0.1/",
        "http://100.64.0.1/",
        "http://[::1]/",
        "http://[::]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[::ffff:7f00:1]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::a00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[fe80::1]/",
        "http://[fd00::1]/",
        "http://[ff02::1]/",
    ],
)
async def test_an_address_that_is_not_public_is_blocked(url: str) -> None:
    async with reader() as cell:
        emission = await ask(cell, url)

    assert emission.hop["error_code"] == "target_blocked"


@pytest.mark.parametrize(
    "addresses", [["10.0.0.5"], [PUBLIC, "10.0.0.5"], ["2606:2800::1", "fe80::1%1"]]
)
async def test_a_name_with_any_blocked_address_is_blocked(addresses: list[str]) -> None:
    async with reader(resolve=resolving(addresses)) as cell:
        emission = await ask(cell, "http://rebind.test/")

    assert emission.hop["error_code"] == "target_blocked"


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "fe80::1", "100.100.100.200", "fd00:ec2::254", "224.0.0.1"]
)
async def test_allowing_private_networks_never_opens_metadata(address: str) -> None:
    async with reader(resolve=resolving([address]), allow_private_networks=True) as cell:
        emission = await ask(cell, "http://inside.test/")

    assert emission.hop["error_code"] == "target_blocked"


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "::1", "fc00::1", "::ffff:10.0.0.1"])
async def test_allowing_private_networks_opens_them(address: str) -> None:
    screen = Screen(resolving([address]), allow_private_networks=True)

    assert await screen.addresses("inside.test") == [address]


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:220:1::1", "::ffff:93.184.216.34"])
async def test_public_addresses_pass(address: str) -> None:
    screen = Screen(resolving([address]), allow_private_networks=False)

    assert await screen.addresses("outside.test") == [address]


async def test_a_name_without_addresses_is_unreadable() -> None:
    with pytest.raises(Unreadable):
        await Screen(resolving([]), allow_private_networks=False).addresses("nowhere.test")


async def test_the_connection_goes_to_the_address_that_was_screened(server: WebServer) -> None:
    server.replies["/a"] = Reply(b"hello")
    wire = Wire()
    screen = Screen(resolving([PUBLIC], ["127.0.0.1"]), allow_private_networks=False)
    transport = ScreenedTransport(screen, wire)

    url = httpx.URL(server.url("/a", host="rebind.test"))
    page = await get(transport, url, max_redirects=0, limit=10)
    await transport.aclose()

    assert page.body.head == b"hello"
    assert wire.connected == [PUBLIC]
    assert f"host: rebind.test:{server.port}" in server.requests[0].lower()


async def test_a_redirect_to_a_blocked_host_is_blocked(server: WebServer) -> None:
    server.replies["/a"] = Reply(status=302, headers={"Location": "http://inside.test/"})
    wire = Wire()
    screen = Screen(resolving([PUBLIC], ["10.0.0.1"]), allow_private_networks=False)
    transport = ScreenedTransport(screen, wire)

    url = httpx.URL(server.url("/a", host="outside.test"))
    with pytest.raises(TargetBlocked):
        await get(transport, url, max_redirects=5, limit=10)
    await transport.aclose()

    assert wire.connected == [PUBLIC]


async def test_the_next_address_is_tried_where_one_is_down(server: WebServer) -> None:
    server.replies["/a"] = Reply(b"hello")
    wire = Wire("2606:2800::1")
    screen = Screen(resolving(["2606:2800::1", PUBLIC]), allow_private_networks=False)
    transport = ScreenedTransport(screen, wire)

    url = httpx.URL(server.url("/a", host="outside.test"))
    await get(transport, url, max_redirects=0, limit=10)
    await transport.aclose()

    assert wire.connected == ["2606:2800::1", PUBLIC]


async def test_a_document_below_the_root_is_read(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a b.md").write_text("# Title\n\nText.\n")

    async with reader(tmp_path, root="documents") as cell:
        emission = await ask(cell, "file:///a%20b.md")

    assert text(emission) == "# Title\n\nText.\n"
    assert emission.hop["content_type"] == "text/markdown"
    assert emission.hop["bytes"] == 15
    assert "http_status" not in emission.hop


async def test_an_html_document_is_given_as_readable_text(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<title>T</title><p>Text.</p>")

    async with reader(root=str(tmp_path)) as cell:
        assert text(await ask(cell, "file:///a.html")) == "T\n\nText."


async def test_a_document_over_the_cap_is_cut(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)

    async with reader(root=str(tmp_path), max_bytes=10) as cell:
        emission = await ask(cell, "file:///a.txt")

    assert text(emission) == "xxxxxxxxxx… [truncated, 100 bytes total]"
    assert (emission.hop["truncated"], emission.hop["bytes"]) == (True, 100)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("file:///../secret.md", "target_blocked"),
        ("file:///link.md", "target_blocked"),
        ("file:///none.md", "not_found"),
        ("file:///" + "a" * 5_000, "not_found"),
        ("file:///circle.md", "not_found"),
        ("file:///.secret", "not_found"),
        ("file:///", "not_found"),
        ("file://elsewhere/a.md", "invalid_input"),
    ],
)
async def test_a_file_that_is_no_document_is_refused(tmp_path: Path, url: str, code: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.md").write_text("secret")
    (root / "link.md").symlink_to(tmp_path / "secret.md")
    (root / "circle.md").symlink_to(root / "circle.md")
    (root / ".secret").write_text("secret\n")

    async with reader(root=str(root)) as cell:
        emission = await ask(cell, url)

    assert emission.hop["error_code"] == code
    assert "secret\n" not in text(emission)
    assert str(tmp_path) not in text(emission)


async def test_a_missing_root_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        async with reader(tmp_path, root="none"):
            pass


def test_the_tool_is_declared_read_only() -> None:
    assert WebFetch.default_tool.name == "web_fetch"
    assert WebFetch.default_tool.read_only
    assert WebFetch.default_tool.parameters["required"] == ["url"]
