"""A comparison that is killed after any step and continued: the same differences, and no chunk is read twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.event import Kind, Op, Version
from penstock.verify.digests import digests_of_values
from penstock.verify.folder import DigestFolder
from penstock.verify.job import Comparison, TableResult, _Table
from penstock.verify.rounds import ColumnDifference, Look, Snapshot, SourceRow, StoredRow
from penstock.verify.source import SourceChunk, SourceRows
from tests.unit.formats.events import event_of, schema_of

SCHEMA = schema_of({"id": Kind.INT64}, value=Kind.INT64)
SNAPSHOT = Snapshot(lambda version: True, 50)
LATER = Snapshot(lambda version: True, 60)
CHUNKS = 4


class KilledError(Exception):
    """Stands for the end of the process."""


def event(id_: int) -> Any:
    return event_of(SCHEMA, Op.READ, after={"id": id_, "value": id_})


@dataclass
class Source:
    """Eight rows in chunks of two. `step` is called between all reads."""

    step: Callable[[], None]
    name: str = "public.t"
    asked: list[int] = field(default_factory=list)

    def chunks(self, cursor: str = "") -> Iterator[SourceChunk]:
        for number in range(int(cursor or 0), CHUNKS):
            self.asked.append(number)
            events = {json.dumps([id_]): event(id_) for id_ in (2 * number, 2 * number + 1)}
            yield SourceChunk(SourceRows.of_events(events), SNAPSHOT, str(number + 1), number == CHUNKS - 1)
            self.step()

    def rows(self, keys: Sequence[str]) -> Mapping[str, SourceRow]:
        ids = {key: json.loads(key)[0] for key in keys}
        return {key: SourceRow(event(id_) if id_ < 2 * CHUNKS else None, LATER) for key, id_ in ids.items()}

    def rows_at(self, versions: Mapping[str, Version]) -> Mapping[str, SourceRow]:
        return {}


@dataclass
class Target:
    """Row 1 has another value, row 5 is missing, row 9 is extra."""

    step: Callable[[], None]
    shape: str = "columns"
    is_open: bool = False
    left_out: Sequence[str] = ()
    rows: dict[str, int] = field(
        default_factory=lambda: {f"[{id_}]": id_ + 10 * (id_ == 1) for id_ in (0, 1, 2, 3, 4, 6, 7, 9)}
    )

    def open(self, schema: Any) -> bool:
        self.is_open = True
        return True

    def expected(self, rows: SourceRows) -> Any:
        return digests_of_values(
            [key, each.after["value"]] for key, each in rows.events.items() if each.after
        )

    def fingerprints(self) -> Iterator[Any]:
        for key, value in self.rows.items():
            yield digests_of_values([[key, value]])
            self.step()

    def look(self, rows: Mapping[str, Any]) -> Look:
        self.step()
        stored = {
            key: StoredRow(
                Version(1),
                False,
                () if rows[key] is None or rows[key].after["value"] == self.rows[key] else (COLUMN,),
            )
            for key in rows
            if key in self.rows
        }
        return Look(stored)


COLUMN = ColumnDifference("value", "1", "11")


def compared(
    folder: DigestFolder, last_step: int, shape: str = "columns"
) -> tuple[TableResult | None, list[int], int, list[int]]:
    """Compare, and die in step `last_step`; return the result, the chunks, the number of steps and the waits."""
    steps, waits = 0, list[int]()

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == last_step:
            raise KilledError

    source, target = Source(step), Target(step, shape)
    table: Any = _Table(source, target, SCHEMA, "t")  # type: ignore[arg-type]
    comparison = Comparison([table], 1e9, folder, "job")
    result = None
    with suppress(KilledError):
        (result,) = comparison.results(waits.append, lambda *_: None, limit=9, rounds=3)
    return result, source.asked, steps, waits


def test_no_chunk_is_read_twice_and_the_differences_are_the_same(tmp_path: Path) -> None:
    whole, _, steps, _ = compared(DigestFolder(None), 0)
    assert whole is not None
    assert sorted((each.kind.value, each.key) for each in whole.differences) == [
        ("different", "[1]"),
        ("extra", "[9]"),
        ("missing", "[5]"),
    ]
    assert whole.since_ns is None
    for last_step in range(1, steps + 1):
        path = tmp_path / str(last_step)
        with DigestFolder.opened(path, keeps=False) as folder:
            _, before, _, _ = compared(folder, last_step)
        with DigestFolder.opened(path, keeps=True) as folder:
            result, after, _, waits = compared(folder, 0)
        # A chunk is saved before the next step.
        assert sorted(before + after) == list(range(CHUNKS)), last_step
        assert result is not None
        assert (result.rows, set(result.differences)) == (whole.rows, set(whole.differences)), last_step
        assert result.since_ns is not None
        # The target must have what the chunks of the first command saw.
        assert waits[0] == SNAPSHOT.until_ns


def test_a_target_with_other_columns_is_compared_from_the_start(tmp_path: Path) -> None:
    with DigestFolder.opened(tmp_path, keeps=False) as folder:
        compared(folder, 2)
    with DigestFolder.opened(tmp_path, keeps=True) as folder:
        result, asked, _, _ = compared(folder, 0, "other columns")
    assert asked == list(range(CHUNKS))
    assert result is not None
    assert result.since_ns is None
    assert len(result.differences) == 3


@pytest.mark.parametrize("keeps", [True, False])
def test_a_command_begins_anew_unless_it_is_to_continue(keeps: bool, tmp_path: Path) -> None:
    with DigestFolder.opened(tmp_path, keeps=False) as folder:
        compared(folder, 3)
    with DigestFolder.opened(tmp_path, keeps=keeps) as folder:
        _, asked, _, _ = compared(folder, 0)
    assert asked == ([3] if keeps else [0, 1, 2, 3])
