"""One running emulator for all tests here, and a separate table for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from penstock_emulators.bigtable import BigtableEmulator, Control
from tests.integration.emulators.bigtable.client import Client

_numbers = count()


@pytest.fixture(scope="session")
def emulator() -> Iterator[BigtableEmulator]:
    with BigtableEmulator.start() as emulator:
        yield emulator


@pytest.fixture
def control(emulator: BigtableEmulator) -> Control:
    return emulator.control


@pytest.fixture
def new_client(emulator: BigtableEmulator) -> Iterator[Callable[[], Client]]:
    """Make a client of a table that does not exist yet."""
    made: list[Client] = []

    def make() -> Client:
        made.append(Client(emulator.host, f"table-{next(_numbers)}"))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(new_client: Callable[[], Client]) -> Client:
    """A client of a new table with families f and g and a change stream."""
    client = new_client()
    client.create()
    return client
