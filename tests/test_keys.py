"""Keys: one slot for all of a partition, no two meanings for one key."""

import inspect
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from colony.errors import ConfigError
from colony.keys import Keys

VALUES = {"path": "/agent/{x}", "trace_id": "t-1", "table": "thread", "scope_id": "s}:{1"}


def every(keys: Keys) -> Iterator[tuple[str, str]]:
    """Each kind of key by the name of its method."""
    for name, method in inspect.getmembers(keys, inspect.ismethod):
        if not name.startswith("_"):
            parameters = inspect.signature(method).parameters
            yield name, method(*(VALUES.get(parameter, parameter) for parameter in parameters))


@pytest.mark.parametrize("name", ["colony", "a", "my-colony-2", "x" * 40])
@pytest.mark.parametrize("partition", [0, 1, 255])
def test_all_keys_of_a_partition_share_a_slot(name: str, partition: int) -> None:
    found = dict(every(Keys(name, partition)))
    prefix = f"colony:{{{name}:{partition}}}:"

    assert len(found) > 20
    assert [key for key in found.values() if not key.startswith(prefix)] == []
    assert {key_slot(key.encode()) for key in found.values()} == {
        key_slot(f"{name}:{partition}".encode())
    }


def test_no_two_kinds_of_key_are_spelled_alike() -> None:
    found = [key for _, key in every(Keys())]

    assert len(set(found)) == len(found)


def test_colonies_and_partitions_have_nothing_in_common() -> None:
    spaces = [Keys("a"), Keys("b"), Keys("a", 1), Keys("a", 11), Keys("a-1")]
    keys = [key for space in spaces for _, key in every(space)]

    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "name", ["", "A", "my_colony", "a b", "a:b", "{a}", "a}", "é", "a\n", "x" * 41, "a/b"]
)
def test_a_name_that_would_break_the_hash_tag_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Keys(name)

    assert caught.value.code == "config_invalid"


def test_every_key_says_first_what_type_of_value_lies_there() -> None:
    kinds = ("Channel", "Hash", "List", "Set", "Sorted set", "Stream", "String")
    silent = [name for name, _ in every(Keys()) if not getdoc(name).startswith(kinds)]

    assert silent == []


def getdoc(name: str) -> str:
    return inspect.getdoc(getattr(Keys, name)) or ""
