"""An event that a table can never hold fails its epoch before the commit, so that the remedies of the message work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.test_stream import TestStream

from penstock.errors import PenstockError
from penstock.event import ChangeEvent, Kind, Op, Source
from penstock.io.delta import WriteToDelta
from penstock.io.files import WriteToParquet
from penstock.io.iceberg import WriteToIceberg
from penstock.io.staging.refused import RefusedEvent
from penstock.runner.protocol.errors import EpochFailedError
from penstock.tables import TableSelection
from penstock.transforms import FilterEvents
from tests.simulation.stream import run_stream
from tests.support.catalogs import catalog_in
from tests.unit.formats.events import event_of, schema_of

ORDERS, VISITS = (
    Source("postgresql", schema="public", table="orders"),
    Source("postgresql", schema="public", table="visits"),
)
KEYED, AT = schema_of({"id": Kind.INT64}, at=Kind.TIMESTAMP), schema_of({}, at=Kind.TIMESTAMP)
GOOD = [event_of(KEYED, after={"id": n, "at": 1000}, source=ORDERS, timestamp=n) for n in range(3)]
WITHOUT_KEY = event_of(AT, after={"at": 1000}, source=VISITS)
NANOSECONDS = event_of(KEYED, after={"id": 7, "at": 1234567891}, source=VISITS)

Sink = Callable[[Path], beam.PTransform]


def delta(folder: Path) -> beam.PTransform:
    return WriteToDelta(f"{folder}/lake/{{table}}", roll_seconds=0)


def history(folder: Path) -> beam.PTransform:
    return WriteToDelta(f"{folder}/lake/{{table}}", mode="history", roll_seconds=0)


def iceberg(folder: Path) -> beam.PTransform:
    properties = catalog_in(folder)
    return WriteToIceberg("shop.{table}", catalog="t", catalog_properties=properties, roll_seconds=0)


def parquet(folder: Path) -> beam.PTransform:
    return WriteToParquet(folder / "lake", roll_seconds=0)


def job(
    events: Sequence[ChangeEvent], sink: beam.PTransform, *steps: beam.PTransform, letters: bool = False
) -> Any:
    def build(p: beam.Pipeline) -> None:
        stream = TestStream().add_elements(GOOD[:1]).add_elements([*GOOD[1:], *events])
        found = p | stream.advance_watermark_to_infinity()
        for step in steps:
            found |= step
        if not letters:
            _ = found | "Write" >> sink
            return
        _, refused = found | "Write" >> sink.with_exception_handling()
        _ = refused | "Letter" >> beam.Map(keep)

    return build


LETTERS: list[RefusedEvent] = []


def keep(letter: RefusedEvent) -> None:
    LETTERS.append(letter)


@pytest.mark.parametrize(
    ("sink", "event", "said"),
    [
        (delta, WITHOUT_KEY, "no primary key"),
        (history, WITHOUT_KEY, "no primary key"),
        (iceberg, WITHOUT_KEY, "no primary key"),
        (delta, NANOSECONDS, "column at of public.visits"),
        (iceberg, NANOSECONDS, "column at of public.visits"),
        (parquet, NANOSECONDS, "column at of public.visits"),
    ],
)
@pytest.mark.parametrize("remedy", ["filter", "letters"])
def test_a_remedy_works_at_the_next_start(
    sink: Sink, event: ChangeEvent, said: str, remedy: str, tmp_path: Path
) -> None:
    LETTERS.clear()
    with pytest.raises(EpochFailedError) as failed:
        run_stream(job([event], sink(tmp_path)), folder=tmp_path)
    text, cause = str(failed.value), failed.value.__cause__
    assert isinstance(cause, PenstockError)
    assert not cause.retryable, "another try fails in the same way"
    assert "public.visits" in text
    assert said in text
    assert "without_tables=public.visits" in text
    assert "with_exception_handling" in text
    assert "1234567891" not in text
    if remedy == "filter":
        last = run_stream(
            job([event], sink(tmp_path), FilterEvents(without_tables="public.visits")), folder=tmp_path
        )
    else:
        last = run_stream(job([event], sink(tmp_path), letters=True), folder=tmp_path)
        assert [each.event for each in LETTERS] == [event]
    assert last.state.done


NUMBER, TIME = schema_of({"id": Kind.INT64}, x=Kind.INT32), schema_of({"id": Kind.INT64}, x=Kind.TIMESTAMP)
VISITED = [
    event_of(NUMBER, after={"id": 1, "x": 5}, source=VISITS, timestamp=10_000),
    event_of(NUMBER, after={"id": 2, "x": 6}, source=VISITS, timestamp=11_000),
]
CHANGED = [
    event_of(TIME, after={"id": 1, "x": 7_000}, source=VISITS, timestamp=12_000),
    event_of(TIME, Op.CREATE, after={"id": 3, "x": 8_000}, source=VISITS, timestamp=13_000),
]


def delta_rows(folder: Path, table: str) -> list[Any]:
    from deltalake import DeltaTable

    found = DeltaTable(f"{folder}/lake/{table}").to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["x"]) for row in found)


def iceberg_rows(folder: Path, table: str) -> list[Any]:
    from pyiceberg.catalog import load_catalog

    properties = catalog_in(folder)
    found = load_catalog("t", **properties).load_table(f"shop.{table}").scan().to_arrow().to_pylist()
    return sorted((row["id"], row["x"]) for row in found)


def tables(kind: str, folder: Path, policy: str = "evolve", **selected: Any) -> beam.PTransform:
    sink: Any
    if kind == "delta":
        sink = WriteToDelta(f"{folder}/lake/{{table}}", roll_seconds=0, schema_changes=policy)
    else:
        properties = catalog_in(folder)
        sink = WriteToIceberg(
            "shop.{table}",
            catalog="t",
            catalog_properties=properties,
            roll_seconds=0,
            schema_changes=policy,
        )
    return sink.selecting(TableSelection(**selected))


def epochs(sink: beam.PTransform, *parts: Sequence[ChangeEvent]) -> Any:
    def build(p: beam.Pipeline) -> None:
        stream = TestStream()
        for part in parts:
            stream = stream.add_elements(part)
        _ = p | stream.advance_watermark_to_infinity() | "Write" >> sink

    return build


KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])
EPOCHS = pytest.mark.parametrize(
    "parts",
    [
        ([*VISITED, *CHANGED, *GOOD],),
        (VISITED, [*CHANGED, *GOOD]),
        (
            VISITED,
            [event_of(NUMBER, after={"id": 2, "x": 6}, source=VISITS, timestamp=11_500), *CHANGED, *GOOD],
        ),
    ],
    ids=["one epoch", "two epochs", "both types in the second epoch"],
)


@KINDS
@EPOCHS
def test_a_column_that_changes_its_type_is_named_once_and_ignored_if_told(
    kind: str, parts: Any, tmp_path: Path
) -> None:
    with pytest.raises(EpochFailedError, match="another try would fail in the same way") as failed:
        run_stream(epochs(tables(kind, tmp_path), *parts), folder=tmp_path)
    text = str(failed.value)
    assert "column x of table" in text
    assert "changed from INT32 to TIMESTAMP" in text
    assert "public.visits" in text
    assert "without_tables=public.visits" in text
    assert text.count("changed from INT32") == 1
    assert failed.value.__cause__ is not None
    assert failed.value.__cause__.__cause__ is None, "the command shows the text of the first cause"
    read = delta_rows if kind == "delta" else iceberg_rows
    if kind == "delta":
        from deltalake import DeltaTable

        orders = DeltaTable(f"{tmp_path}/lake/orders").to_pyarrow_table()
        assert orders.num_rows == len(GOOD), "the other table of the epoch is written"
    last = run_stream(epochs(tables(kind, tmp_path, "ignore"), *parts), folder=tmp_path)
    assert last.state.done
    assert read(tmp_path, "visits") == [(1, 5), (2, 6), (3, None)]


@KINDS
def test_a_filter_of_the_next_start_holds_for_staged_changes(kind: str, tmp_path: Path) -> None:
    parts = VISITED, [*CHANGED, *GOOD]
    with pytest.raises(EpochFailedError, match="without_tables=public.visits"):
        run_stream(epochs(tables(kind, tmp_path), *parts), folder=tmp_path)
    without = tables(kind, tmp_path, without_tables=("public.visits",))
    assert run_stream(epochs(without, *parts), folder=tmp_path).state.done
    read = delta_rows if kind == "delta" else iceberg_rows
    assert read(tmp_path, "visits") == [(1, 5), (2, 6)]


@KINDS
def test_a_type_that_becomes_wider_within_an_epoch_is_the_type_of_the_column(
    kind: str, tmp_path: Path
) -> None:
    wide = schema_of({"id": Kind.INT64}, x=Kind.INT64)
    # The narrower type comes last: a late change of the time before the column became wider.
    part = [
        event_of(wide, after={"id": 3, "x": 1 << 40}, source=VISITS, timestamp=12_000),
        *VISITED,
    ]
    assert run_stream(epochs(tables(kind, tmp_path), part), folder=tmp_path).state.done
    read = delta_rows if kind == "delta" else iceberg_rows
    assert read(tmp_path, "visits") == [(1, 5), (2, 6), (3, 1 << 40)]


@pytest.mark.parametrize("mode", ["log", "history"])
@EPOCHS
def test_a_log_and_a_history_leave_out_a_column_of_another_type(
    mode: Any, parts: Any, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    sink = WriteToDelta(f"{tmp_path}/lake/{{table}}", mode=mode, roll_seconds=0, schema_changes="ignore")
    assert run_stream(epochs(sink, *parts), folder=tmp_path).state.done
    found = DeltaTable(f"{tmp_path}/lake/visits").to_pyarrow_table().to_pylist()
    rows = [row["after"] if mode == "log" else row for row in found]
    kept = None if mode == "log" else 5
    assert {(1, 5), (1, kept), (2, 6), (3, None)} == {(row["id"], row["x"]) for row in rows}


def test_a_value_that_is_too_large_for_an_ignored_type_asks_for_a_wider_one(tmp_path: Path) -> None:
    wide = schema_of({"id": Kind.INT64}, x=Kind.INT64)
    large = event_of(wide, after={"id": 3, "x": 1 << 40}, source=VISITS, timestamp=14_000)
    with pytest.raises(EpochFailedError, match=r"column x of public.visits .* schema_changes='evolve'"):
        run_stream(epochs(tables("delta", tmp_path, "ignore"), VISITED, [large]), folder=tmp_path)
    assert run_stream(epochs(tables("delta", tmp_path), VISITED, [large]), folder=tmp_path).state.done
    assert delta_rows(tmp_path, "visits") == [(1, 5), (2, 6), (3, 1 << 40)]


def test_a_key_that_changes_its_type_is_refused_also_with_ignore(tmp_path: Path) -> None:
    texts = event_of(schema_of({"id": Kind.STRING}), after={"id": "a"}, source=VISITS, timestamp=14_000)
    with pytest.raises(EpochFailedError, match="column id of table .* changed .* cannot be left out"):
        run_stream(epochs(tables("delta", tmp_path, "ignore"), VISITED, [texts]), folder=tmp_path)
