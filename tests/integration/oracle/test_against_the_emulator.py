"""The oracle and the demo's bank on the real emulator, without a pipeline.

The changes that an ordinary client reads must replay to the tables, with every column type, and break no rule.
Otherwise an error that the oracle finds in a pipeline's files could be an error of the oracle.
"""

import random
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from penstock.compat import UTC
from penstock_emulators.demo import bank
from penstock_emulators.demo.writers import connect
from penstock_emulators.oracle.change import Change, changes_of
from penstock_emulators.oracle.lines import Line
from penstock_emulators.oracle.replay import differences, read_table, read_types, replay
from penstock_emulators.oracle.rules import nothing_doubled, transactions_whole
from penstock_emulators.oracle.stream import Stream, as_content, read_stream, strays
from penstock_emulators.spanner import SpannerEmulator

pytestmark = [pytest.mark.emulator, pytest.mark.slow]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with SpannerEmulator.start(token_life_seconds=1) as emulator:
        emulator.create_database("penstock-test", "test", "bank", list(bank.DDL))
        for name, value in emulator.environment().items():
            monkeypatch.setenv(name, value)
        time.sleep(0.1)  # the emulator's clock is a little ahead
        yield connect("penstock-test", "test", "bank")


def changes(stream: Stream) -> list[Change]:
    """All changes of the stream in commit order, as if they stood in one file."""
    lines = [
        Line(content["table_name"], "hour", "00-of-01", "place", content)
        for record in stream.records
        for content in as_content(record)
    ]
    return sorted(changes_of(lines), key=lambda change: change.version)


def rounds() -> Iterator[None]:
    """Continue for a minute: the emulator changes partitions only while no client writes, so a change may take long."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        yield


def test_changes_read_by_an_ordinary_client_replay_to_the_tables_with_every_column_type(database):
    start = datetime.now(UTC)
    rng, book = random.Random(1), bank.OrderBook(random.Random(2))
    mods = bank.open_accounts(database)
    for _ in rounds():
        for _ in range(60):
            mods += bank.transfer(database, rng, 5)
            mods += book.trade(database, inserts=8, updates=6, deletes=3)
            time.sleep(0.02)
        stream = read_stream(database, bank.STREAM, start, datetime.now(UTC))
        if stream.events.total():
            break
    found = changes(stream)
    types = read_types(database)
    tables = {name: read_table(database, name, types[name], key) for name, key in bank.KEYS.items()}
    assert stream.mods() == len(found) == mods
    assert stream.events.total() >= 1
    assert differences(replay(found), tables, types) == []
    assert nothing_doubled(found) == []
    assert transactions_whole(found) == []
    assert bank.sum_of_balances(tables["Accounts"].values()) == bank.TOTAL


@pytest.mark.campaign
def test_the_emulator_moves_keys_to_partitions_that_are_not_descendants(database):
    """Not so on the service; here reading all parents first does not yet give commit order per key."""
    start = datetime.now(UTC)
    bank.open_accounts(database)
    rng = random.Random(1)
    for _ in rounds():
        for _ in range(60):
            bank.transfer(database, rng, 20)
            time.sleep(0.05)
        if found := strays(read_stream(database, bank.STREAM, start, datetime.now(UTC))):
            break
    assert found > 0


def test_a_lost_change_and_a_torn_transaction_are_found(database):
    start = datetime.now(UTC)
    bank.open_accounts(database)
    bank.transfer(database, random.Random(1), 3)
    found = changes(read_stream(database, bank.STREAM, start, datetime.now(UTC)))[:-1]
    types = read_types(database)
    tables = {name: read_table(database, name, types[name], key) for name, key in bank.KEYS.items()}
    assert len(transactions_whole(found)) == 1
    assert len(differences(replay(found), tables, types)) == 1
