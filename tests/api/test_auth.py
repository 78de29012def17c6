"""Who may ask: with a token, and without one."""

import httpx
import pytest

from colony.access import Access
from colony.api.app import make_app
from colony.config import Config
from colony.engine import Engine
from colony.errors import ConfigError
from colony.principals import Principals


def client(access: Access, *, token: str | None, host: str = "colony.example") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(
        make_app(Engine(access), principals=Principals(token=token)), raise_app_exceptions=False
    )
    return httpx.AsyncClient(transport=transport, base_url=f"http://{host}")


@pytest.mark.parametrize(
    "shown",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic secret", "secret", "Bearer sécret"],
)
async def test_without_the_token_nothing_is_told(access: Access, shown: str | None) -> None:
    headers = {} if shown is None else {"Authorization": shown.encode()}
    async with client(access, token="secret") as http:
        for method, url in [("GET", "/colony/graph"), ("POST", "/messages"), ("GET", "/nowhere")]:
            response = await http.request(method, url, headers=headers)

            assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
            assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_with_the_token_the_colony_answers(access: Access, scheme: str) -> None:
    async with client(access, token="secret") as http:
        response = await http.get("/colony/graph", headers={"Authorization": f"{scheme} secret"})

    assert response.status_code == 200


@pytest.mark.parametrize("url", ["/healthz", "/health", "/readyz"])
async def test_health_needs_no_token(access: Access, url: str) -> None:
    async with client(access, token="secret") as http:
        assert (await http.get(url)).status_code != 401


@pytest.mark.parametrize("host", ["127.0.0.1:8420", "localhost", "[::1]:8420", "127.9.9.9"])
async def test_without_a_token_this_host_may_ask(access: Access, host: str) -> None:
    async with client(access, token=None, host=host) as http:
        assert (await http.get("/colony/graph")).status_code == 200


@pytest.mark.parametrize("host", ["colony.example", "127.0.0.1.example:80", "10.0.0.1"])
async def test_without_a_token_a_name_from_elsewhere_is_refused(access: Access, host: str) -> None:
    async with client(access, token=None, host=host) as http:
        response = await http.get("/colony/graph")

    assert (response.status_code, response.json()["code"]) == (421, "host_refused")


@pytest.mark.parametrize("address", ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "example.org:1"])
def test_an_address_others_can_reach_needs_a_token(address: str) -> None:
    with pytest.raises(ConfigError, match="COLONY_API_TOKEN"):
        _ = Config.load({"api": address}).address

    host, port = Config.load({"api": address, "api_token": "secret"}).address
    assert (f"[{host}]" if ":" in host else host) + f":{port}" == address
    assert Config.load({"api": address, "api_tokens_file": "tokens"}).address == (host, port)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1"])
def test_a_loopback_address_needs_none(address: str) -> None:
    assert Config.load({"api": address}).address[1] == 1
