"""Where the processes come from that are put under faults."""

from collections.abc import Iterator

import pytest

from colony.testing.nursery import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """One warm process for all tests."""
    with Nursery() as started:
        yield started
