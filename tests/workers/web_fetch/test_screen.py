"""What a URL may make a worker connect to.

The resolver and the network are the test's own: what is connected to is known, and nothing else is.
"""

from collections.abc import AsyncIterator, Sequence

import httpcore
import pytest
from pydantic import ValidationError

from tests.workers.web_fetch.reading import ask, reader, text
from tests.workers.web_server import Reply, WebServer, serving
from workers.web_fetch import WebFetch
from workers.web_fetch.screen import Resolver

PUBLIC = "93.184.216.34"

# What the test's resolver answers; every other name is that of a public host, so a number that
# reaches it is taken for one.
NAMES = {
    "inside.test": ["10.0.0.5"],
    "mixed.test": [PUBLIC, "10.0.0.5"],
    "mixed6.test": ["2606:2800:220:1::1", "fe80::1%1"],
    "metadata.test": ["169.254.169.254"],
    "mapped.test": ["::ffff:127.0.0.1"],
    "nat64.test": ["64:ff9b::7f00:1"],
    "cgnat.test": ["100.64.0.1"],
}

BLOCKED = [
    # Loopback and this host, in the ways of writing them.
    "http://127.0.0.1/",
    "http://127.1.2.3/",
    "http://2130706433/",
    "http://017700000001/",
    "http://0x7f000001/",
    "http://0x7f.1/",
    "http://127.1/",
    "http://127.0.0.1./",
    "http://2130706433./",
    "http://0/",
    "http://0.0.0.0/",
    "http://localhost/",
    "http://LOCALHOST/",
    "http://localhost./",
    "http://sub.localhost/",
    "http://ip6-localhost/",
    "http://[::1]/",
    "http://[::]/",
    "http://[0:0:0:0:0:0:0:1]/",
    # Private networks.
    "http://10.1.2.3/",
    "http://167772161/",
    "http://172.31.0.1/",
    "http://192.168.0.1/",
    "http://100.64.0.1/",
    "http://198.18.0.1/",
    "http://[fc00::1]/",
    "http://[fd12:3456::1]/",
    "http://[fec0::1]/",
    # Link-local addresses and metadata.
    "http://169.254.169.254/latest/meta-data/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0xa9.0xfe.0xa9.0xfe/",
    "http://[fe80::1]/",
    "http://[fd00:ec2::254]/",
    "http://100.100.100.200/",
    "http://192.0.0.192/",
    "http://168.63.129.16/",
    "http://metadata.google.internal/computeMetadata/v1/",
    "http://metadata/",
    "http://metadata.google.internal./",
    # An IPv4 address within one of IPv6.
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:7f00:1]/",
    "http://[::ffff:10.0.0.1]/",
    "http://[::127.0.0.1]/",
    "http://[::ffff:0:127.0.0.1]/",
    "http://[64:ff9b::a00:1]/",
    "http://[64:ff9b::169.254.169.254]/",
    "http://[64:ff9b:1::a00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:a9fe:a9fe::1]/",
    "http://[2001:0:a00:1::1]/",
    "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/",
    "http://[2606:2800::5efe:10.0.0.1]/",
    # No host at all.
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://192.0.2.1/",
    "http://[ff02::1]/",
    "http://[100::1]/",
    "http://[2001:db8::1]/",
    "http://1.2.3.4.5/",
    "http://0x/",
    "http://4294967296/",
    # Ports that were not declared.
    "http://outside.test:22/",
    "http://outside.test:6379/",
    "http://outside.test:8080/",
    "https://outside.test:8443/",
    # Names.
    "http://inside.test/",
    "http://mixed.test/",
    "http://mixed6.test/",
    "http://metadata.test/",
    "http://mapped.test/",
    "http://nat64.test/",
    "http://cgnat.test/",
    "http://127。0。0。1/",
    "http://inside。test/",
]

INVALID = [
    "http://0177.0.0.1/",
    "http://127.0.0.01/",
    "http://public@127.0.0.1/",
    "http://outside.test@127.0.0.1/",
    "http://outside.test:80@127.0.0.1/",
    "http://ⓛocalhost/",
    "http://１２７.0.0.1/",  # noqa: RUF001
    "http://[::1%25lo]/",
    "http://[::1/",
    "http:///",
    "http://?x",
    "http://:80/",
    "http://outside.test:0/",
    "http://outside.test\n/",
    "gopher://127.0.0.1/",
    "dict://127.0.0.1:11211/",
    "file:///etc/passwd",
    "ftp://inside.test/",
]

# Whatever these are taken for, it is not what they hide.
ODD = [
    "http://127%2e0%2e0%2e1/",
    "http://outside.test\\@127.0.0.1/",
    "http://127.0.0.1\\.outside.test/",
    "http://[fe80::1%25eth0]/",
    "http://[::ffff:169.254.169.254%251]/",
    "http://169.254.169.254 /",
    "http:127.0.0.1/",
    "http:/127.0.0.1/",
    "http://0x7f.0.0.1/",
    "http://127.0.0.1#@outside.test/",
    "http://127.0.0.1?@outside.test/",
]


async def resolve(host: str) -> Sequence[str]:
    return NAMES.get(host, [PUBLIC])


def resolving(*answers: Sequence[str]) -> Resolver:
    """A resolver that gives these answers one after the other, the last one for ever."""
    left = [*answers]

    async def resolve(host: str) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


class Wire(httpcore.AsyncNetworkBackend):
    """A network on which every address is the test's server, except those that are down."""

    def __init__(self, port: int, *down: str) -> None:
        self.connected: list[str] = []
        self._port = port
        self._down = down

    async def connect_tcp(self, host, port, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.connected.append(host)
        if host in self._down:
            raise httpcore.ConnectError("down")
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", self._port)


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with serving() as running:
        yield running


@pytest.fixture
def wire(server: WebServer) -> Wire:
    return Wire(server.port)


@pytest.mark.parametrize("url", BLOCKED)
async def test_what_is_not_public_is_blocked_before_any_connection(wire: Wire, url: str) -> None:
    async with reader(resolve=resolve, network=wire) as cell:
        emission = await ask(cell, url)

    assert emission.hop["error_code"] == "target_blocked"
    assert wire.connected == []


@pytest.mark.parametrize("url", INVALID)
async def test_what_is_no_url_of_the_web_is_invalid_before_any_connection(
    wire: Wire, url: str
) -> None:
    async with reader(resolve=resolve, network=wire) as cell:
        emission = await ask(cell, url)

    assert emission.hop["error_code"] == "invalid_input"
    assert wire.connected == []


@pytest.mark.parametrize("url", ODD)
async def test_what_hides_a_host_connects_to_nothing(wire: Wire, url: str) -> None:
    async with reader(resolve=resolve, network=wire) as cell:
        emission = await ask(cell, url)

    assert emission.hop["error_code"] in ("target_blocked", "invalid_input", "io_error")
    assert wire.connected == []


@pytest.mark.parametrize("url", [*BLOCKED, *INVALID, *ODD])
async def test_a_redirect_leads_nowhere_that_a_url_does_not(
    server: WebServer, wire: Wire, url: str
) -> None:
    server.replies["/a"] = Reply(status=302, headers={"Location": url.strip()})

    async with reader(resolve=resolve, network=wire) as cell:
        emission = await ask(cell, "http://outside.test/a")

    # Some are relative in a redirect, and name another page of the host that sent it.
    assert set(wire.connected) == {PUBLIC}
    assert all("\r\nHost: outside.test\r\n" in request for request in server.requests)
    if "error_code" not in emission.hop:
        assert str(emission.hop["final_url"]).startswith("http://outside.test/")


async def test_the_connection_goes_to_the_address_that_was_screened(
    server: WebServer, wire: Wire
) -> None:
    server.replies["/a"] = Reply(b"hello")

    rebinding = resolving([PUBLIC], ["127.0.0.1"])
    async with reader(resolve=rebinding, network=wire) as cell:
        first = await ask(cell, "http://rebind.test/a")
        second = await ask(cell, "http://rebind.test/a")

    assert text(first) == "hello"
    assert second.hop["error_code"] == "target_blocked"
    assert wire.connected == [PUBLIC]
    assert "host: rebind.test\r\n" in server.requests[0].lower()


async def test_a_redirect_is_resolved_and_screened_again(server: WebServer, wire: Wire) -> None:
    server.replies["/a"] = Reply(status=302, headers={"Location": "/b"})
    server.replies["/b"] = Reply(b"secret")

    rebinding = resolving([PUBLIC], ["127.0.0.1"])
    async with reader(resolve=rebinding, network=wire) as cell:
        emission = await ask(cell, "http://rebind.test/a")

    assert emission.hop["error_code"] == "target_blocked"
    assert wire.connected == [PUBLIC]


async def test_the_next_address_is_tried_where_one_is_down(server: WebServer) -> None:
    server.replies["/a"] = Reply(b"hello")
    wire = Wire(server.port, "2606:2800::1")

    both = resolving(["2606:2800::1", PUBLIC])
    async with reader(resolve=both, network=wire) as cell:
        emission = await ask(cell, "http://outside.test/a")

    assert text(emission) == "hello"
    assert wire.connected == ["2606:2800::1", PUBLIC]


async def test_a_declared_port_is_open_and_only_that(server: WebServer, wire: Wire) -> None:
    server.replies["/a"] = Reply(b"hello")

    async with reader(resolve=resolve, network=wire, ports=[8080]) as cell:
        declared = await ask(cell, "http://outside.test:8080/a")
        other = await ask(cell, "http://outside.test:8081/a")

    assert text(declared) == "hello"
    assert other.hop["error_code"] == "target_blocked"
    assert wire.connected == [PUBLIC]


@pytest.mark.parametrize("port", [0, -1, 65_536, "http"])
def test_a_port_that_is_none_cannot_be_declared(port: object) -> None:
    with pytest.raises(ValidationError):
        WebFetch.Params.model_validate({"ports": [port]})


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "fe80::1",
        "100.100.100.200",
        "fd00:ec2::254",
        "168.63.129.16",
        "0.0.0.0",
        "224.0.0.1",
    ],
)
async def test_allowing_private_networks_never_opens_metadata(wire: Wire, address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    inside = resolving([address])
    async with reader(resolve=inside, network=wire, allow_private_networks=True) as cell:
        for url in ("http://inside.test/", f"http://{host}/", "http://metadata.google.internal/"):
            emission = await ask(cell, url)
            assert emission.hop["error_code"] == "target_blocked"

    assert wire.connected == []


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "::1", "fc00::1", "::ffff:10.0.0.1"])
async def test_allowing_private_networks_opens_them(
    server: WebServer, wire: Wire, address: str
) -> None:
    server.replies["/"] = Reply(b"hello")
    inside = resolving([address])

    async with reader(resolve=inside, network=wire, allow_private_networks=True) as cell:
        assert text(await ask(cell, "http://localhost/")) == "hello"

    assert wire.connected == [address]


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:220:1::1", "::ffff:93.184.216.34"])
async def test_public_addresses_pass(server: WebServer, wire: Wire, address: str) -> None:
    server.replies["/"] = Reply(b"hello")
    host = f"[{address}]" if ":" in address else address

    async with reader(resolve=resolving([address]), network=wire) as cell:
        for url in ("http://outside.test/", f"http://{host}/", "http://outside.test.:80/"):
            assert text(await ask(cell, url)) == "hello"

    assert len(wire.connected) == 3


async def test_a_name_without_addresses_is_unreadable(wire: Wire) -> None:
    async with reader(resolve=resolving([]), network=wire) as cell:
        emission = await ask(cell, "http://nowhere.test/")

    assert emission.hop["error_code"] == "io_error"


async def test_this_machines_resolver_is_screened_too() -> None:
    async with reader() as cell:
        emission = await ask(cell, "http://localhost.localdomain/")

    assert emission.hop["error_code"] == "target_blocked"


def test_the_table_is_long_enough() -> None:
    assert len({*BLOCKED, *INVALID, *ODD}) >= 100
