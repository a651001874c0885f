"""How many requests the changes of one row take. The service is a function that refuses what Bigtable refuses."""

from __future__ import annotations

import re
from typing import Any

import grpc
import pytest

from penstock.event import NO_COLUMNS, CellChange, ChangeEvent, Op, Source, Version
from penstock.io.bigtable.sink import values as sink_values
from penstock.io.bigtable.sink.target import BigtableTarget
from penstock.io.bigtable.sink.write import connector_of
from penstock.io.bigtable.source import Connection
from penstock.io.staging.delivery import Delivery, Refusal, RefusalError

SOURCE = Source("bigtable", "p/i", table="origin")
BAD = b"refused"


class InvalidArgument(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INVALID_ARGUMENT


class Row:
    """Takes conditional requests for one row; `requests` has the values of each one that it took."""

    def __init__(self) -> None:
        self.requests: list[list[bytes]] = []
        self.asked = 0

    def __call__(self, request: Any, **options: Any) -> None:
        self.asked += 1
        values = [mutation.set_cell.value for mutation in request.false_mutations]
        if len(values) > sink_values.MAX_MUTATIONS or BAD in values:
            raise InvalidArgument
        self.requests.append(values[:-1])


def change(number: int, *values: bytes) -> ChangeEvent:
    cells = tuple(CellChange("SET_CELL", "f", b"q", 1000, None, value) for value in values)
    row, version = {"row_key": b"row"}, Version(number * 1_000_000, "", f"{0:020d}")
    return ChangeEvent(SOURCE, Op.UPDATE, number, row, None, row, version, NO_COLUMNS, cells=cells)


def deliver(
    events: list[ChangeEvent], monkeypatch: pytest.MonkeyPatch, most: int = 10, *, skip_refused: bool = True
) -> tuple[Row, tuple[Refusal, ...]]:
    monkeypatch.setattr(sink_values, "MAX_MUTATIONS", most)
    target = BigtableTarget("p", "i", "t", Connection(emulator_host="localhost:1"))
    sender = connector_of(target).open(skip_refused=skip_refused)
    row = Row()
    monkeypatch.setattr(sender, "_call", row)
    try:
        return row, sender.send(Delivery("s", "j", 0, 1, 1, 1), events).refused
    finally:
        sender.close()


def test_a_hot_row_takes_as_few_requests_as_the_limit_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [change(number, b"%d" % number) for number in range(25)]
    row, refused = deliver(events, monkeypatch)
    assert not refused
    assert [len(values) for values in row.requests] == [9, 9, 7]
    assert [value for values in row.requests for value in values] == [b"%d" % n for n in range(25)]


def test_a_refused_change_of_a_hot_row_is_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [change(number, BAD if number == 5 else b"%d" % number) for number in range(64)]
    row, refused = deliver(events, monkeypatch, most=1000)
    assert [each.index for each in refused] == [5]
    written = [value for values in row.requests for value in values]
    assert written == [b"%d" % number for number in range(64) if number != 5]
    assert row.asked == 13


def test_a_change_beyond_the_limit_is_refused_and_the_others_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [change(1, b"a"), change(2, *([b"b"] * 10)), change(3, b"c")]
    row, refused = deliver(events, monkeypatch)
    assert [each.index for each in refused] == [1]
    assert row.requests == [[b"a"], [b"c"]]


def test_a_refusal_says_that_other_changes_may_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusalError) as refused:
        deliver([change(1, b"a"), change(2, BAD)], monkeypatch, skip_refused=False)
    assert "may be written already" in refused.value.batch


def test_a_dot_in_the_family_of_versions_fits_no_other_character() -> None:
    request = sink_values.row_request("t", "", "pen.stock", [change(1, b"1")])
    (family, *_) = request.predicate_filter.chain.filters
    assert re.fullmatch(family.family_name_regex_filter, "pen.stock")
    assert not re.fullmatch(family.family_name_regex_filter, "penXstock")
