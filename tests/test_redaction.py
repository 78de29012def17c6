"""Redaction: what is shown of an address that may hold a secret."""

import pytest

from colony.redaction import without_login, without_values


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://:pass@host:6379/0", "redis://host:6379/0"),
        ("rediss://user:p%40ss@host", "rediss://host"),
        ("redis://host/0?password=secret", "redis://host/0"),
        ("redis://:with/slash?and#more@host", "redis://host"),
        ("unix:///run/redis.sock?password=secret", "unix:///run/redis.sock"),
        (
            "redis+sentinel://user:p%40ss@a:26379,b:26380/main/1?sentinel_password=secret",
            "redis+sentinel://a:26379,b:26380/main/1",
        ),
        ("https://api.example.org/v1", "https://api.example.org/v1"),
    ],
)
def test_an_address_is_shown_without_what_opens_it(address: str, shown: str) -> None:
    assert without_login(address) == shown


def test_a_text_is_shown_without_the_secrets_that_it_repeats() -> None:
    told = without_values("key sk-123456 for on", ["sk-123456", "", "on"])

    assert told == "key [redacted] for on"
