"""Seeded histories over gRPC: the naive reader gets every change once, in every mode and dialect; ours the same."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from apache_beam.runners.sdf_utils import (
    RestrictionTrackerView,
    ThreadsafeRestrictionTracker,
    ThreadsafeWatermarkEstimator,
)

from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark
from penstock.io.spanner import DataChangeRecord, ReadFromSpannerChangeStream
from penstock.io.spanner.clock import ServiceClock
from penstock.io.spanner.read import ReadSpannerFn
from penstock_emulators.simulated_spanner import Control
from tests.conftest import Campaign
from tests.integration.emulators.simulated_spanner.conftest import (
    GOOGLESQL,
    INSTANCE,
    POSTGRESQL,
    PROJECT,
    History,
)
from tests.support.epochs import Epochs
from tests.support.oracle.naive_spanner_reader import Change, read_changes

pytestmark = pytest.mark.long(seconds=10)
MUTABLE = "partition_mode = 'MUTABLE_KEY_RANGE'"
CAPTURES = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES")


def reading(history: History, **options: Any) -> ReadFromSpannerChangeStream:
    """Return our source over the whole interval.

    It reaches the simulation as a self-managed endpoint and not as an emulator, where partitions are read in step.
    """
    return ReadFromSpannerChangeStream(
        **{
            "project": PROJECT,
            "instance": INSTANCE,
            "database": history.name,
            "change_stream": "Changes",
            "start": history.start,
            "end": history.end,
            "api_endpoint": history.simulation.host,
            "plain_text": True,
            **options,
        }
    )


def read_with_penstock(history: History, **options: Any) -> list[DataChangeRecord]:
    """Read the whole interval with the DoFn of our source, in the order in which it emits."""
    transform = reading(history, **options)
    transform.check()
    fn = ReadSpannerFn(transform._settings)
    frontier = fn.initial_restriction(transform.stream)
    tracker = ThreadsafeRestrictionTracker(fn.create_tracker(frontier))
    estimator = ThreadsafeWatermarkEstimator(FrontierWatermarkEstimator(beam_watermark(frontier.watermark)))
    outputs = fn.process(transform.stream, RestrictionTrackerView(tracker), estimator)
    records = [output.value for output in outputs]
    tracker.check_done()
    return records


def as_changes(records: list[DataChangeRecord]) -> list[Change]:
    """Return the mods of our records as the naive reader has them, in the order of the records."""
    return [
        Change(
            record.commit_timestamp,
            record.record_sequence,
            record.server_transaction_id,
            index,
            record.table_name,
            record.mod_type,
            tuple(json.dumps(json.loads(side), sort_keys=True) for side in mod),
        )
        for record in records
        for index, mod in enumerate(record.mods)
    ]


def rows(history: History, table: str, key: str) -> dict[str, dict[str, Any]]:
    """Return the table as of the history's end, read as JSON-like text by an ordinary client."""
    with history.client.snapshot() as snapshot:
        found = snapshot.execute_sql(f"SELECT * FROM {table}")
        table_rows = list(found)
        names = [field.name for field in found.fields]
    return {str(row[names.index(key)]): dict(zip(names, row, strict=True)) for row in table_rows}


def replayed_keys(changes: list[Change], table: str) -> set[str]:
    """Return the keys that exist after all changes; inserting an existing key is an error."""
    live: set[str] = set()
    for change in changes:
        if change.table != table:
            continue
        key = next(iter(json.loads(change.sides[0]).values()))
        assert (key in live) == (change.mod_type != "INSERT"), change
        (live.discard if change.mod_type == "DELETE" else live.add)(key)
    return live


def check_order(changes: list[Change]) -> None:
    """Changes of each key are in commit order."""
    by_key: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        by_key.setdefault((change.table, change.sides[0]), []).append(change)
    for of_key in by_key.values():
        assert all(first < second for first, second in pairwise(of_key)), "order per key"


def check_whole(changes: list[Change]) -> None:
    """No change comes twice, and the history has something to test."""
    assert max(Counter((c.timestamp, c.transaction, c.sequence, c.index) for c in changes).values()) == 1
    assert {change.mod_type for change in changes} == {"INSERT", "UPDATE", "DELETE"}


@pytest.mark.parametrize("seed", range(4))
def test_our_reader_reads_a_history_as_the_naive_reader_does(
    new_history: Callable[..., History], seed: int
) -> None:
    history = new_history(seed, options=f"value_capture_type = '{CAPTURES[seed]}'")
    expected = read_changes(history.client, ["READ_Changes"], history.start, history.end)
    check_whole(expected)
    ours = as_changes(read_with_penstock(history))
    assert sorted(ours) == expected
    check_order(ours)
    for table in ("Accounts", "Orders"):
        assert replayed_keys(expected, table) == rows(history, table, "Id").keys()


@pytest.mark.parametrize(
    ("dialect", "options", "function"),
    [
        (GOOGLESQL, MUTABLE, "READ_Changes"),
        (POSTGRESQL, "value_capture_type = 'NEW_ROW'", "read_json_changes"),
        (POSTGRESQL, MUTABLE, "read_proto_bytes_changes"),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_both_readers_read_the_same_in_each_mode_and_dialect_and_it_replays_to_the_tables(
    new_history: Callable[..., History], seed: int, dialect: str, options: str, function: str
) -> None:
    history = new_history(seed, dialect=dialect, options=options)
    changes = read_changes(history.client, [function], history.start, history.end)
    check_whole(changes)
    ours = as_changes(read_with_penstock(history))
    assert sorted(ours) == changes
    check_order(ours)
    tables, key = (("Accounts", "Orders"), "Id") if dialect == GOOGLESQL else (("accounts", "orders"), "id")
    for table in tables:
        assert replayed_keys(changes, table) == rows(history, table, key).keys()


@pytest.mark.parametrize("mode", ["IMMUTABLE_KEY_RANGE", "MUTABLE_KEY_RANGE"])
def test_each_placement_has_a_function_with_separate_tokens(
    new_history: Callable[..., History], mode: str
) -> None:
    history = new_history(
        5,
        options=f"per_placement_tvf = true, partition_mode = '{mode}'",
        first=("CREATE PLACEMENT us", "CREATE PLACEMENT eu"),
        extra=", Place STRING(MAX) NOT NULL PLACEMENT KEY",
    )
    with history.client.snapshot() as snapshot:
        names = snapshot.execute_sql("SELECT routine_name FROM information_schema.routines")
        functions = [name for (name,) in names]
    assert functions == ["READ_Changes_default", "READ_Changes_us", "READ_Changes_eu"]
    parts = [read_changes(history.client, [each], history.start, history.end) for each in functions]
    assert all(parts), "each placement has changes"
    changes = sorted(change for part in parts for change in part)
    check_whole(changes)
    ours = as_changes(read_with_penstock(history))
    assert sorted(ours) == changes
    check_order(ours)
    for table in ("Accounts", "Orders"):
        assert replayed_keys(changes, table) == rows(history, table, "Id").keys()
    tokens = [
        {each["token"] for each in history.simulation.control.partitions(history.path, "Changes", place)}
        for place in ("default", "us", "eu")
    ]
    assert not tokens[0] & tokens[1] | tokens[1] & tokens[2]


def test_the_seed_replays_a_history(new_history: Callable[..., History]) -> None:
    first, second = (new_history(9) for _ in range(2))
    changes = [
        [change[3:] for change in read_changes(each.client, ["READ_Changes"], each.start, each.end)]
        for each in (first, second)
    ]
    assert changes[0] == changes[1]


@pytest.mark.parametrize("size", [7, 40, 300])
def test_small_chunks_and_rare_resume_tokens_change_nothing(
    new_history: Callable[..., History], size: int
) -> None:
    history = new_history(11, steps=15)
    whole = read_changes(history.client, ["READ_Changes"], history.start, history.end)
    control = history.simulation.control
    control.shape(chunk_bytes=size, rows_per_message=2, resume_every=3)
    try:
        assert read_changes(history.client, ["READ_Changes"], history.start, history.end) == whole
        assert sorted(as_changes(read_with_penstock(history))) == whole
    finally:
        control.shape(chunk_bytes=1 << 20, rows_per_message=500, resume_every=1)


@pytest.mark.parametrize("mid_row", [False, True])
def test_both_readers_continue_after_errors_at_any_row(
    new_history: Callable[..., History], mid_row: bool
) -> None:
    history = new_history(13, steps=60)
    whole = read_changes(history.client, ["READ_Changes"], history.start, history.end)
    control = history.simulation.control
    before = control.stats().get("faults", 0)
    control.shape(rows_per_message=1)
    for read in (
        lambda: read_changes(history.client, ["READ_Changes"], history.start, history.end),
        lambda: sorted(as_changes(read_with_penstock(history))),
    ):
        for rows_before in (0, 1, 3):
            control.add_fault(stream="Changes", after_rows=rows_before, mid_row=mid_row)
        assert read() == whole
    assert control.stats()["faults"] - before == 6
    control.shape(rows_per_message=500)


FUNCTIONS = {
    (GOOGLESQL, False): "READ_Changes",
    (GOOGLESQL, True): "READ_Changes",
    (POSTGRESQL, False): "read_json_changes",
    (POSTGRESQL, True): "read_proto_bytes_changes",
}


def read_in_epochs(
    history: History, rng: random.Random, crash_at_every_step: bool
) -> tuple[list[DataChangeRecord], int]:
    """Read as a runner does, in parts, with splits and crashes; return the committed records and the crashes."""
    read = Epochs(reading(history, idle_stream_seconds=0.5), rng.choice((1, 2, 4)))
    deadline = time.monotonic() + 240
    while read.residuals:
        assert time.monotonic() < deadline, "the read does not end"
        if crash_at_every_step:
            read.run(0.5, steps=1, crash=True)
            read.run(0.5, steps=1)
        else:
            read.run(rng.choice((0.0, 0.05, 0.5)), crash=rng.random() < 0.25)
    return read.committed, read.crashes


HOUR = 3600
SKEWS = (0, 0, -HOUR, -1, 1, HOUR)
"""Seconds by which the wall clock of the reader is ahead of the service's."""


def random_history(
    new_history: Callable[..., History], rng: random.Random, dialect: str, mutable: bool, short: bool
) -> History:
    options = f"value_capture_type = '{rng.choice(CAPTURES)}'" + (f", {MUTABLE}" if mutable else "")
    placed: dict[str, Any] = {}
    if dialect == GOOGLESQL and rng.random() < 0.2:
        options += ", per_placement_tvf = true"
        placed = {
            "first": ("CREATE PLACEMENT us", "CREATE PLACEMENT eu"),
            "extra": ", Place STRING(MAX) NOT NULL PLACEMENT KEY",
        }
    return new_history(
        rng.getrandbits(32),
        dialect=dialect,
        options=options,
        steps=25 if short else rng.choice((60, 100, 200)),
        most=rng.choice((3, 8, 16)),
        churn_share=rng.choice((0.1, 0.5)),
        **placed,
    )


@pytest.mark.parametrize("mutable", [False, True], ids=["immutable", "mutable"])
@pytest.mark.parametrize("dialect", [GOOGLESQL, POSTGRESQL])
def test_random_histories_with_errors_and_crashes_are_read_completely_in_any_message_layout(
    new_history: Callable[..., History],
    campaign: Campaign,
    monkeypatch: pytest.MonkeyPatch,
    dialect: str,
    mutable: bool,
) -> None:
    """Each history has its own capture type, churn, placements, sizes of messages, errors, lag, clock and crashes.

    Every fifth is read with a crash at each of its steps.
    """
    figures: Counter[str] = Counter()
    name = f"spanner-histories-{'googlesql' if dialect == GOOGLESQL else 'postgresql'}"
    name += "-mutable" if mutable else ""
    for number in range(campaign.size(1, 250)):
        rng = campaign.random(f"{name}/{number}")
        every_step = number % 5 == 4
        history = random_history(new_history, rng, dialect, mutable, every_step)
        control = history.simulation.control
        control.shape(
            chunk_bytes=rng.choice((50, 1 << 20)),
            rows_per_message=rng.choice((1, 3, 500)),
            resume_every=rng.choice((1, 2, 5)),
        )
        stream = "Changes" if dialect == GOOGLESQL else "changes"
        placements, functions = functions_of(history, FUNCTIONS[dialect, mutable])
        add_faults(control, rng)
        changes = read_changes(history.client, functions, history.start, history.end)
        assert len(set(changes)) == len(changes), number
        tables, key = (
            (("Accounts", "Orders"), "Id") if dialect == GOOGLESQL else (("accounts", "orders"), "id")
        )
        for table in tables:
            assert replayed_keys(changes, table) == rows(history, table, key).keys(), number
        control.clear_faults()
        add_faults(control, rng)
        partitions = [
            each for place in placements for each in control.partitions(history.path, stream, place)
        ]
        laggards = lagging_partitions(partitions, rng)
        for token in laggards:
            control.add_fault(token=token, code="UNAVAILABLE", times=rng.choice((1, 3)))
        skew = rng.choice(SKEWS)
        set_wall_clock(monkeypatch, history.end + skew * 10**9)
        if rng.random() < 0.3:  # the service's time is not known at first
            control.add_fault(method="ExecuteStreamingSql", times=rng.choice((1, 3)))
        records, crashes = read_in_epochs(history, rng, every_step)
        ours = as_changes(records)
        assert sorted(ours) == changes, number
        check_order(ours)
        figures.update(
            histories=1,
            changes=len(changes),
            crashes=crashes,
            crashed_at_every_step=every_step,
            skewed=bool(skew),
            placements=len(placements) if len(placements) > 1 else 0,
            laggards=len(laggards),
            **shapes(partitions),
        )
        control.clear_faults()
        control.shape(chunk_bytes=1 << 20, rows_per_message=500, resume_every=1)
    campaign.record(name, **figures)


def functions_of(history: History, function: str) -> tuple[list[str], list[str]]:
    """Return the names of the placements ("" without any) and the read functions of the history's stream."""
    with history.client.snapshot() as snapshot:
        found = [
            name for (name,) in snapshot.execute_sql("SELECT routine_name FROM information_schema.routines")
        ]
    placed = [name for name in found if name.startswith(f"{function}_")]
    return [name.removeprefix(f"{function}_") for name in placed] or [""], placed or [function]


def lagging_partitions(partitions: list[dict[str, Any]], rng: random.Random) -> list[str]:
    """Return tokens to refuse for a time: grandparents of merged partitions first, then a few others."""
    parents = {each["token"]: each["parents"] for each in partitions}
    grandparents = [
        token
        for merged in parents.values()
        if len(merged) > 1
        for parent in merged
        for token in parents.get(parent, ())
    ]
    others = rng.sample(list(parents), len(parents) // 5)
    return list(dict.fromkeys([*rng.sample(grandparents, min(3, len(grandparents))), *others]))


def shapes(partitions: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many partitions there are, how many of them came from a merge, and how many from a move."""
    children = Counter(parent for each in partitions for parent in each["parents"])
    return {
        "partitions": len(partitions),
        "merged": sum(len(each["parents"]) > 1 for each in partitions),
        "moved": sum(len(each["parents"]) == 1 and children[each["parents"][0]] == 1 for each in partitions),
    }


def set_wall_clock(monkeypatch: pytest.MonkeyPatch, timestamp: int) -> None:
    """Start the wall clock of readers that connect from now on at a time, in nanoseconds since 1970."""
    begun = time.monotonic_ns()
    wall = partial(ServiceClock, wall=lambda: timestamp + time.monotonic_ns() - begun)
    monkeypatch.setattr("penstock.io.spanner.client.ServiceClock", wall)


def add_faults(control: Control, rng: random.Random) -> None:
    """Make some queries fail at random rows."""
    for _ in range(rng.choice((0, 2, 4))):
        control.add_fault(after_rows=rng.choice((0, 1, 2, 7)), mid_row=rng.random() < 0.5)
