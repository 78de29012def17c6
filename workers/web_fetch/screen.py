"""The screen: which addresses may be connected to (meclaw, screening of web_fetch).

A URL may come from a model, which may have it from a page of a stranger; nothing inside the network
the worker runs in may be reached by it.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence

from colony.errors import TargetBlocked, Unreadable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str], Awaitable[Sequence[str]]]

WEB_PORTS = frozenset({80, 443})


def _networks(written: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(part) for part in written.split())


_PRIVATE = _networks(
    "10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 172.16.0.0/12 192.168.0.0/16 198.18.0.0/15"
    " ::1/128 fc00::/7 fec0::/10"
)
# Link-local addresses and the other places where clouds serve credentials are never opened, nor is
# what belongs to no host: documentation, translation, multicast.
_NEVER = _networks(
    "0.0.0.0/8 169.254.0.0/16 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.51.100.0/24"
    " 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 100.100.100.200/32 168.63.129.16/32"
    " ::/128 64:ff9b:1::/48 100::/64 2001:db8::/32 fe80::/10 ff00::/8"
    " fd00:ec2::254/128 fd20:ce::254/128 fd00:c1::a9fe:a9fe/128"
)
# IPv6 networks whose addresses hold an IPv4 address in their last 32 bits.
_EMBEDDING = _networks("::/96 ::ffff:0:0/96 ::ffff:0:0:0/96 64:ff9b::/96")
# The 32 bits before those of an address that is tunnelled within a site, the lowest two bits of the
# first octet aside.
_ISATAP = 0x00005EFE
_ISATAP_FLAGS = 0x03000000

_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
_METADATA_NAMES = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "instance-data"}
)
# What the last part of a name looks like that some resolvers take for an address.
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)", re.IGNORECASE)


async def system_resolver(host: str) -> Sequence[str]:
    """The addresses of `host` as this machine resolves it."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


class Screen:
    """Lets through the addresses of public hosts, and of private ones where that is allowed.

    Ports other than those of the web are closed where they are not among `ports`.
    """

    def __init__(
        self,
        resolve: Resolver,
        *,
        allow_private_networks: bool,
        ports: Collection[int] = (),
    ) -> None:
        self._resolve = resolve
        self._private = allow_private_networks
        self._ports = WEB_PORTS.union(ports)

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """The addresses of `host`, each of them harmless; to be connected to as they are.

        Raises TargetBlocked if any of them is blocked, and Unreadable where there is none.
        """
        if port not in self._ports:
            raise TargetBlocked(target=f"{host}:{port}", detail="this port is not declared")
        name = host.lower().removesuffix(".")
        if name in _METADATA_NAMES or (not self._private and _is_local(name)):
            raise TargetBlocked(target=host, detail="it is a name within the network")
        found = _literal(host, name) or await self._resolved(host)
        for written in found:
            if self._blocks(written):
                raise TargetBlocked(target=host, detail="it has an address that is not public")
        return found

    async def _resolved(self, host: str) -> Sequence[str]:
        try:
            found = list(dict.fromkeys(await self._resolve(host)))
        except (OSError, UnicodeError) as error:
            raise Unreadable(detail=f"{host} has no address: {error}") from error
        if not found:
            raise Unreadable(detail=f"{host} has no address")
        return found

    def _blocks(self, written: str) -> bool:
        address = ipaddress.ip_address(written)
        blocked = _NEVER if self._private else _NEVER + _PRIVATE
        meant = [address, *_embedded(address)]
        return any(one in network for one in meant for network in blocked)


def _is_local(name: str) -> bool:
    return name in _LOCAL_NAMES or name.endswith((".localhost", ".internal", ".local"))


def _literal(host: str, name: str) -> Sequence[str]:
    """The address that a host is instead of a name, however it is spelled; empty for a name.

    No resolver is asked about one: what it makes of an octal or hexadecimal number is its own.
    """
    try:
        return [str(ipaddress.ip_address(name))]
    except ValueError:
        if ":" not in name and not _NUMBER.fullmatch(name.rpartition(".")[2]):
            return []
    try:
        return [socket.inet_ntoa(socket.inet_aton(name))]
    except OSError:
        raise TargetBlocked(target=host, detail="it is a number and no address") from None


def _embedded(address: Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that a packet to an IPv6 address may end at."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found = [address.sixtofour, *(address.teredo or ())]
    bits = int(address)
    # `::` and `::1` are addresses of their own.
    embeds = bits > 1 and any(address in network for network in _EMBEDDING)
    if embeds or (bits >> 32) & 0xFFFFFFFF & ~_ISATAP_FLAGS == _ISATAP:
        found.append(ipaddress.IPv4Address(bits & 0xFFFFFFFF))
    return [one for one in found if one is not None]
