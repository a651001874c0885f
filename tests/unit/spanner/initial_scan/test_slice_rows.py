"""The rows of a key range that one task of a data source reads: each once, also if the read breaks off."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.initial_scan.errors import ExpiredError
from penstock.io.spanner.initial_scan.frontier import KeyRange, Table
from penstock.io.spanner.slice_reader import RowsPart, read_rows
from tests.unit.spanner.initial_scan.test_prefetch import TABLE, FakeRead, Table3


class Client:
    """Takes the place of a `ScanClient`."""

    def __init__(self, table: Table3) -> None:
        self.table, self.ranges = table, list[KeyRange]()
        self.backoff = Backoff("Spanner", UnavailableError, draw=lambda low, high: 0.0)

    def read(self, table: Table, each: KeyRange, timestamp: int) -> FakeRead:
        self.ranges.append(each)
        return FakeRead(self.table, self.table.of(each), 0)


def keys(client: Any, each: KeyRange, unavailable_seconds: float = 5) -> list[int]:
    records = read_rows(client, RowsPart(TABLE, each, 5), unavailable_seconds)
    return [int(json.loads(mod.keys)["K"]) for record in records for mod in record.mods]


def test_a_read_that_breaks_off_is_continued_after_the_last_row() -> None:
    table = Table3()
    table.failures = [UnreachableError("UNAVAILABLE"), ExpiredError("Session not found")]
    client = Client(table)
    assert keys(client, KeyRange(0, '["4"]', '["12"]')) == list(range(4, 12))
    assert [each.start for each in client.ranges] == ['["4"]', '["6"]', '["9"]']
    assert [each.end for each in client.ranges] == ['["12"]'] * 3


def test_an_outage_that_lasts_too_long_is_raised() -> None:
    table = Table3()
    table.failures = [UnreachableError("UNAVAILABLE")]
    with pytest.raises(UnavailableError, match="unavailable_seconds"):
        keys(Client(table), KeyRange(0), 0.0)
