"""Changes of the published tables that the log does not have are told once, with what repairs them."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from penstock.io.change_streams.flat import FlatPosition
from penstock.io.change_streams.incremental.options import SnapshotOptions
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres.initial_scan.frontier import LogFrontier
from penstock.io.postgres.log_steps import CaughtUp, LogSteps
from penstock.io.postgres.position import Position
from penstock.io.postgres.schema_watch import (
    LOOK_SECONDS,
    Differences,
    Look,
    Published,
    PublishedColumn,
    PublishedTable,
    SchemaWatch,
    differences,
    repair_of,
    texts_of,
    unread_rows,
)
from penstock.tables import EVERY_TABLE, TableSelection
from tests.unit.postgres.slot_readers import START, Server, claim, reader

FOLDER = repair_of(SnapshotOptions(signal_folder="/signals"))
AGAIN = "To send them again, run: penstock snapshot /signals --table public.orders"


def table(oid: int = 1, name: str = "orders", *columns: tuple[Any, ...], **facts: Any) -> PublishedTable:
    named = tuple(PublishedColumn(*column) for column in columns or ((1, "id"), (2, "note")))
    given = {"is_partition": False, "is_automatic": False, "numbers": max(c.number for c in named), **facts}
    return PublishedTable(oid, "public", name, columns=named, **given)


def changes(before: list[PublishedTable], now: list[PublishedTable], *patterns: str) -> list[str]:
    return texts_of(compared(before, now, *patterns), "publication shop", FOLDER)


def compared(before: list[PublishedTable], now: list[PublishedTable], *patterns: str) -> Differences:
    return differences(Published(100, tuple(before)), Published(200, tuple(now)), TableSelection(patterns))


def to_read(before: list[PublishedTable], now: list[PublishedTable], *patterns: str) -> dict[str, str]:
    return unread_rows(compared(before, now, *patterns))


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (
            table(1, "orders", (1, "id"), (2, "note"), (3, "channel", True)),
            "public.orders has the new column channel: ",
        ),
        (
            table(1, "orders", (1, "id"), (2, "remark")),
            "public.orders: the column note is called remark now. ",
        ),
        (
            table(1, "orders", (1, "id")),
            "public.orders: the column note was dropped, or left the publication. ",
        ),
        (table(1, "sales"), "public.orders is called public.sales now: "),
    ],
)
def test_each_change_of_a_table_is_told_once(now: PublishedTable, said: str) -> None:
    (text,) = changes([table()], [now])
    assert text.startswith(said)
    assert changes([now], [now]) == []


def test_a_new_column_without_a_default_needs_no_repair() -> None:
    assert changes([table()], [table(1, "orders", (1, "id"), (2, "note"), (3, "channel"))]) == []


def test_a_column_that_existed_before_it_was_published_lacks_its_values() -> None:
    before = table(1, "orders", (1, "id"), numbers=2)
    (text,) = changes([before], [table()])
    assert text.startswith("public.orders has the new column note: ")
    assert text.endswith(AGAIN)


def test_a_table_that_joins_and_one_that_leaves_are_told() -> None:
    joined, left = table(2, "refunds"), table(3, "old")
    texts = changes([table(), left], [table(), joined])
    assert texts[0].startswith(
        "public.refunds joined the publication shop: rows that it had before are not in the target. "
    )
    assert texts[1].startswith("public.old left the publication shop, or was dropped: ")
    assert changes([table(), left], [table(), joined], "orders") == []  # tables that are not read


def test_tables_that_are_published_from_their_creation_on_lack_nothing() -> None:
    new, attached = table(150, "p_new", is_automatic=True), table(50, "p_old", is_automatic=True)
    assert [text[:12] for text in changes([table()], [table(), new, attached])] == ["public.p_old"]
    assert changes([table(), table(2, "p", is_partition=True)], [table()]) == []


def test_rows_of_a_table_that_joins_are_read_unless_the_log_has_all_of_them() -> None:
    new = {"is_automatic": True}
    known, old, listed = table(), table(50, "old"), table(150, "listed")
    for_all, of_schema = table(151, "for_all", is_for_all=True, **new), table(152, "of_schema", **new)
    now = [known, old, listed, for_all, of_schema]
    assert to_read([known], now) == {"public.old": "", "public.listed": "", "public.of_schema": ""}
    assert to_read([known], now, "for_all", "old") == {"public.old": ""}
    assert to_read(now, now) == {}


def test_a_table_with_a_new_name_joins_and_its_old_name_leaves() -> None:
    found = compared([table()], [table(1, "sales")])
    assert (unread_rows(found), found.left) == ({"public.sales": ""}, (table(),))
    # A name that is not selected does not join, and the old one leaves all the same.
    found = compared([table()], [table(1, "sales")], "orders")
    assert (unread_rows(found), found.left) == ({}, (table(),))
    (text,) = changes([table()], [table(1, "sales")], "orders")
    assert text.startswith("public.orders left the publication shop, or was dropped: ")


def test_a_partition_that_is_attached_to_a_published_table_lacks_its_rows() -> None:
    root, more = table(1, "events", partitions=(7,)), table(1, "events", partitions=(7, 9, 8))
    assert to_read([root], [more]) == {"public.events": "tableoid in (8, 9)"}
    assert to_read([more], [root]) == {}
    (text,) = changes([root], [more])
    assert text.startswith("public.events has partitions that were attached: ")
    # One that was created since is empty, as a rule.
    assert changes([root], [table(1, "events", partitions=(7, 150))]) == []
    assert to_read([root], [table(1, "log", partitions=(7, 8))]) == {"public.log": ""}


def test_tables_of_earlier_versions_are_not_taken_for_changed() -> None:
    packed = table()
    older = msgspec.json.decode(
        msgspec.json.encode(list(msgspec.to_builtins(packed))[:7]), type=PublishedTable
    )
    assert older == packed
    now = table(is_for_all=True, is_automatic=True)
    assert (changes([older], [now]), to_read([older], [now])) == ([], {})


def test_the_repair_is_the_one_that_the_pipeline_can_do() -> None:
    assert "INSERT INTO public.s VALUES" in repair_of(SnapshotOptions(signal_table="public.s"))("public.t")
    assert "set signal_folder" in repair_of(SnapshotOptions())("public.t")
    assert "in a pipeline of its own" in repair_of(SnapshotOptions(), several_slots=True)("public.t")


def test_what_is_known_survives_packing() -> None:
    published = Published(7, (table(), table(2, "refunds", (1, "id", True))))
    assert Published.unpack(published.pack()) == published
    many = [table(oid, f"orders_{oid}", *((n, f"column_{n}") for n in range(1, 21))) for oid in range(500)]
    assert len(Published(0, tuple(many)).pack()) < 30_000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_server_is_asked_at_the_start_and_every_minute() -> None:
    clock, answers = Clock(), [[table()], [table()], [table(1, "orders", (1, "id"))]]
    watch = SchemaWatch(
        lambda: Published(1, tuple(answers.pop(0))), "publication shop", EVERY_TABLE, FOLDER, clock=clock
    )
    assert watch.is_due
    known, texts, *_ = watch.look("")
    assert (texts, watch.is_due) == ((), False)
    clock.now += LOOK_SECONDS
    assert watch.is_due
    assert watch.look(known) == Look(known)
    later, texts, *_ = watch.look(known)
    assert later != known
    assert len(texts) == 1


def test_a_reader_warns_when_the_step_is_claimed_and_the_position_remembers_it(caplog: Any) -> None:
    before, now = Published(1, (table(),)), Published(2, (table(), table(2, "refunds")))
    server = Server([CaughtUp(10, 10), CaughtUp(20, 20)])
    watch = SchemaWatch(lambda: now, "publication shop", EVERY_TABLE, FOLDER)
    reading = reader(server, START._replace(published=before.pack()), watch=watch)
    try:
        batch = reading.take(5)
        with caplog.at_level(logging.WARNING):
            assert not caplog.messages
            claim(reading, batch)
        assert [text[:29] for text in caplog.messages] == ["public.refunds joined the pub"]
        assert Published.unpack(reading.position.published).tables == now.tables
    finally:
        reading.stop()


def test_tables_that_joined_and_left_are_remembered_in_the_position() -> None:
    routine = table(3, "events_1", is_partition=True)
    notes, refunds = table(5, "notes"), table(2, "refunds")
    looks = [[table()], [table(), notes, refunds, routine], [notes, refunds], [notes, table(4, "orders")]]
    answers, times = (
        [Published(number, tuple(tables)) for number, tables in enumerate(looks)],
        iter((5, 6, 7)),
    )
    watch = SchemaWatch(
        lambda: answers.pop(0),
        "publication shop",
        TableSelection(),
        FOLDER,
        time_ns=lambda: next(times),
    )
    known = ""
    for _ in looks:
        known = watch.look(known).published
    frontier = LogFrontier({"slot": FlatPosition(list(START._replace(published=known)), 0)}, None)
    assert [tuple(move) for move in frontier.table_moves] == [
        ("public.notes", True, 5),
        ("public.refunds", False, 7),
        ("public.orders", True, 7),
    ]


class Following:
    """A merge that keeps what it is asked to follow."""

    def __init__(self, position: Position) -> None:
        self.progress, self.recent, self.initial = position.snapshots, (), None
        self.waits_for_log = self.is_unfinished = False

    def begin_scan(self, stopped: Any) -> bool:
        return False

    def follow_tables(self, joined: Any, left: Any, id_: str) -> None:
        self.progress, _ = self.progress.followed(joined, left, id_)

    def reopened(self) -> None: ...
    def stop(self) -> None: ...
    def acknowledged(self, lsn: int) -> None: ...
    def advance(self, lsn: int, timestamp: int, *, at_end: bool = False) -> list[Any]:
        return []


def test_the_request_for_rows_is_in_the_same_position_as_the_table_that_joined() -> None:
    before, now = Published(1, (table(),)), Published(2, (table(), table(2, "refunds")))
    start = START._replace(published=before.pack())
    watch = SchemaWatch(lambda: now, "publication shop", EVERY_TABLE, FOLDER, reads_new_tables=True)
    log = LogSteps("slot", FlatPosition(start, 0), lambda *_: True, None)
    log.merge = Following(start)  # type: ignore[assignment]
    log.looked(watch.look(log.position.published))
    (step,) = log.steps([(CaughtUp(10, 10), 1)])
    position = step[2].position
    assert Published.unpack(position.published).tables == now.tables
    (snapshot,) = position.snapshots.snapshots
    assert (snapshot.id, snapshot.request.tables) == ("new_tables-0/0", (r"public\.refunds",))
    # A reader that continues at this position asks for nothing more, and one that repeats the look asks for the same.
    again = watch.look(position.published)
    assert (again.joined, again.left) == ({}, ())
    assert watch.look(start.published).joined == {"public.refunds": ""}


@pytest.mark.parametrize(
    ("now", "requested"),
    [
        (table(1, "orders", (1, "id"), (2, "note"), (3, "channel", True)), True),
        (table(1, "orders", (1, "id"), (2, "remark")), True),
        # Rows from before have NULL here and there, and a dropped column has no values to read.
        (table(1, "orders", (1, "id"), (2, "note"), (3, "channel")), False),
        (table(1, "orders", (1, "id")), False),
    ],
)
def test_the_rows_of_a_table_with_a_new_column_are_requested_if_the_log_lacks_its_values(
    now: PublishedTable, requested: bool
) -> None:
    before = Published(1, (table(),)).pack()
    watch = SchemaWatch(
        lambda: Published(2, (now,)), "publication shop", EVERY_TABLE, FOLDER, reads_new_columns=True
    )
    look = watch.look(before)
    assert look.joined == ({"public.orders": ""} if requested else {})
    assert any("are read now, between the changes" in text for text in look.warnings) is requested
    assert watch.look(look.published).joined == {}
    without = SchemaWatch(lambda: Published(2, (now,)), "publication shop", EVERY_TABLE, FOLDER)
    assert without.look(before).joined == {}


def test_a_look_that_fails_does_not_end_the_read() -> None:
    def ask() -> Published:
        raise UnreachableError("too many connections")

    reading = reader(Server([CaughtUp(10, 10)]), watch=SchemaWatch(ask, "p", EVERY_TABLE, FOLDER))
    try:
        claim(reading, reading.take(5))
        assert reading.position == Position(10, 0, "system")
        assert reading.uncounted().retries == 0  # the log is not opened again
    finally:
        reading.stop()
