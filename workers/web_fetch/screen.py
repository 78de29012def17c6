"""The screen: which addresses may be connected to (meclaw, screening of web_fetch).

A URL may come from a model, which may have it from a page of a stranger; nothing inside the network
the worker runs in may be reached by it.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

from colony.errors import TargetBlocked, Unreadable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str], Awaitable[Sequence[str]]]


def _networks(written: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(part) for part in written.split())


_PRIVATE = _networks(
    "10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 172.16.0.0/12 192.168.0.0/16 198.18.0.0/15"
    " ::1/128 fc00::/7 fec0::/10"
)
# Link-local addresses and the other places where clouds serve credentials are never opened.
_NEVER = _networks(
    "0.0.0.0/8 169.254.0.0/16 192.0.0.0/24 224.0.0.0/4 240.0.0.0/4 100.100.100.200/32"
    " ::/128 100::/64 fe80::/10 ff00::/8 fd00:ec2::254/128"
)
# IPv6 networks whose addresses hold an IPv4 address in their last 32 bits.
_EMBEDDING = _networks("::/96 ::ffff:0:0/96 ::ffff:0:0:0/96 64:ff9b::/96 64:ff9b:1::/48")


async def system_resolver(host: str) -> Sequence[str]:
    """The addresses of `host` as this machine resolves it."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


class Screen:
    """Lets through the addresses of public hosts, and of private ones where that is allowed."""

    def __init__(self, resolve: Resolver, *, allow_private_networks: bool) -> None:
        self._resolve = resolve
        self._blocked = _NEVER if allow_private_networks else _NEVER + _PRIVATE

    async def addresses(self, host: str) -> Sequence[str]:
        """The addresses of `host`, each of them harmless; to be connected to as they are.

        Raises TargetBlocked if any of them is blocked, and Unreadable where there is none.
        """
        try:
            found = list(dict.fromkeys(await self._resolve(host)))
        except (OSError, UnicodeError) as error:
            raise Unreadable(detail=f"{host} has no address: {error}") from error
        if not found:
            raise Unreadable(detail=f"{host} has no address")
        for written in found:
            if self._blocks(written):
                raise TargetBlocked(target=host, detail="it has an address that is not public")
        return found

    def _blocks(self, written: str) -> bool:
        address = ipaddress.ip_address(written)
        meant = [address, *_embedded(address)]
        return any(one in network for one in meant for network in self._blocked)


def _embedded(address: Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that a packet to an IPv6 address may end at."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found = [address.sixtofour, *(address.teredo or ())]
    # `::` and `::1` are addresses of their own.
    if int(address) > 1 and any(address in network for network in _EMBEDDING):
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [one for one in found if one is not None]
