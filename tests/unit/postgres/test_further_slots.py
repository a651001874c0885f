"""Several slots of one database: their arguments, their checks, and their place in a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import SetupError, UsageError
from penstock.io.change_streams.flat import FlatPosition
from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock.io.postgres.coder import ChangeStreamCoder, LogFrontierCoder
from penstock.io.postgres.initial_scan.frontier import LogFrontier
from penstock.io.postgres.position import Position
from penstock.io.postgres.preflight import Slot, check_shards
from penstock.io.postgres.source import ChangeStream

STREAM = ChangeStream("shop", "orders", "one", 0, None, (("three", "rest"), ("two", "people,places")))


def source(**options: Any) -> ReadFromPostgresChangeStream:
    return ReadFromPostgresChangeStream(
        **{"dsn": "dbname=shop", "publication": "orders", "slot": "one", **options}
    )


def shared(*rows: tuple[str, str, bool]) -> Any:
    """Return the answer to the question for the tables of publications: publication, table, whether it filters rows."""
    return lambda query, parameters: list(rows)


def test_each_further_slot_is_a_stream_with_its_publications() -> None:
    made = source(further_slots={"two": "people,places", "three": "rest"})
    assert made.stream == STREAM
    assert [(shard.slot, shard.publications) for shard in made.stream.shards] == [
        ("one", ("orders",)),
        ("three", ("rest",)),
        ("two", ("people", "places")),
    ]


def test_streams_and_positions_of_several_slots_survive_a_checkpoint() -> None:
    coder = ChangeStreamCoder()
    for stream in (STREAM, *STREAM.shards):
        assert coder.decode(coder.encode(stream)) == stream
    frontier = LogFrontier(
        {
            name: FlatPosition(list(Position(number, 3, "system")), number)
            for number, name in enumerate("abc")
        },
        None,
    )
    assert LogFrontierCoder().decode(LogFrontierCoder().encode(frontier)) == frontier


def test_a_position_of_an_older_checkpoint_knows_no_published_tables() -> None:
    coder = LogFrontierCoder()
    known = Position(7, 3, "system", published="packed")
    encoded = coder.encode(LogFrontier({"a": FlatPosition(list(known), 7)}, None))
    assert coder.decode(encoded).positions["a"].position == list(known)
    older = encoded.replace(b',"packed"]', b"]")
    assert older != encoded
    assert coder.decode(older).positions["a"].position == list(known._replace(published=""))


def test_a_read_begins_at_the_confirmed_position_of_each_slot() -> None:
    fn = ReadFromPostgresChangeStream.bounded_fn(source()._settings)
    frontier = fn.first_frontier(STREAM, {"one": Slot(10, "s"), "two": Slot(20, "s"), "three": Slot(30, "s")})
    assert {name: at.position[0] for name, at in frontier.positions.items()} == {
        "one": 10,
        "two": 20,
        "three": 30,
    }


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ({"one": "rest"}, "'one' is the first slot already"),
        ({"two": "rest,orders"}, "'orders' belongs to one and two"),
        ({"two": "rest", "three": "rest"}, "'rest' belongs to two and three"),
        ({"Two": "rest"}, "lower-case letters"),
    ],
)
def test_a_slot_or_a_publication_that_is_named_twice_is_refused(further: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        source(further_slots=further)


def test_signals_are_refused_because_each_slot_would_answer_them() -> None:
    with pytest.raises(UsageError, match="signals request snapshots of one slot"):
        source(further_slots={"two": "rest"}, signal_file="/tmp/signals.jsonl")


def test_a_table_in_publications_of_two_slots_is_refused() -> None:
    rows = [("orders", "t", False), ("people", "p", False), ("places", "p", False), ("rest", "t", False)]
    with pytest.raises(
        SetupError, match=r"the table t is in publications of the slots one and three.*DROP TABLE t"
    ):
        check_shards(STREAM, shared(*rows))


@pytest.mark.parametrize(("filters", "is_refused"), [((True, True), False), ((True, False), True)])
def test_two_slots_may_divide_the_rows_of_a_table_if_both_filter_them(
    filters: tuple[bool, bool], is_refused: bool
) -> None:
    rows = shared(("orders", "t", filters[0]), ("rest", "t", filters[1]))
    if not is_refused:
        check_shards(STREAM, rows)
        return
    with pytest.raises(SetupError, match="row filters that exclude each other"):
        check_shards(STREAM, rows)


def test_publications_of_one_slot_may_share_a_table() -> None:
    check_shards(STREAM, shared(("people", "p", False), ("places", "p", True), ("rest", "q", False)))


@pytest.mark.parametrize(
    "dsn", ["postgresql://ada:hunter2@db:6432/shop", "host=/var/run/postgresql dbname=shop password=hunter2"]
)
def test_a_connection_string_may_have_slashes(dsn: str) -> None:
    assert source(dsn=dsn).stream.database == "shop"


@pytest.mark.parametrize("dsn", ["", "postgresql://ada:hunter2@[db/shop", "host= hunter2"])
def test_a_connection_string_that_cannot_be_used_is_refused_without_its_text(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PGDATABASE", "PGUSER"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UsageError, match="dsn") as refused:
        source(dsn=dsn)
    assert "hunter2" not in str(refused.value)
