"""An event that a table can never hold fails its epoch before the commit, so that the remedies of the message work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.test_stream import TestStream

from penstock.errors import PenstockError
from penstock.event import ChangeEvent, Kind, Source
from penstock.io.delta import WriteToDelta
from penstock.io.files import WriteToParquet
from penstock.io.iceberg import WriteToIceberg
from penstock.io.staging.refused import RefusedEvent
from penstock.runner.protocol.errors import EpochFailedError
from penstock.transforms import FilterEvents
from tests.simulation.stream import run_stream
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
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
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
