"""Changes of files are replayed to rows, in whatever order the files come."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from contextlib import ExitStack
from decimal import Decimal
from math import inf
from pathlib import Path
from typing import Any, cast

import fastavro
import msgspec
import pyarrow as pa
import pytest

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Image, Kind, Op, TableSchema, Version
from penstock.event.coder import encode_event
from penstock.io.columnar.avro import AvroRows
from penstock.io.columnar.parquet import ParquetRows, parquet_file
from penstock.io.columnar.table_rows import key_text
from penstock.io.files.json_lines import json_line
from penstock.io.staging.blocks import RecordBlock
from penstock.transforms.formats.event_envelope import EventFormat
from penstock.transforms.formats.lines import LineContent, RecordLines
from penstock.verify.file_changes import KINDS
from penstock.verify.replayed_files import ReplayedFiles
from penstock.verify.replayed_lines import ReplayedLines, envelope_lines, lines_of
from penstock.verify.rounds import ColumnDifference, StoredRow
from penstock.verify.source import SourceRows
from tests.unit.formats.events import event_of, schema_of

LINES = ("values", "messages")
"""What a line of the format envelope is."""
kinds = pytest.mark.parametrize("kind", [*sorted(KINDS), *LINES])
columnar = pytest.mark.parametrize("kind", sorted(KINDS))
SCHEMA = schema_of({"id": Kind.UINT64, "the code": Kind.BYTES}, a=Kind.DECIMAL, b=Kind.TIMESTAMP, c=Kind.JSON)
KEYS: list[Image] = [{"id": id_, "the code": b"\x00" if id_ % 2 else b"x"} for id_ in range(5)]
EMPTY: Image = {"a": None, "b": None, "c": None}


class History:
    """Random changes, in their order, and the rows after them: by key version, and the row or None if it is deleted."""

    def __init__(self, rng: random.Random, changes: int) -> None:
        self.rng, self.events = rng, list[ChangeEvent]()
        self.rows = dict[str, tuple[Version, Image | None]]()
        self.truncated: Version | None = None
        for number in range(1, changes + 1):
            self.version = Version(number * 10, "tx", str(number), 0)
            self._change()

    def _change(self) -> None:
        key, choice = self.rng.choice(KEYS), self.rng.random()
        row = self._row(key)
        if choice < 0.05:
            self.truncated, self.rows = self.version, {}
            self._add(Op.TRUNCATE, None, None, None)
        elif row is None:
            self._write(self.rng.choice((Op.CREATE, Op.READ)), key, None, self._values())
        elif choice < 0.25:
            self.rows[key_text(key)] = (self.version, None)
            self._add(Op.DELETE, key, key, None)
        elif choice < 0.4 and (free := [each for each in KEYS if self._row(each) is None]):
            self.rows[key_text(key)] = (self.version, None)
            self._write(Op.UPDATE, self.rng.choice(free), key, row)
        else:
            sent = self.rng.sample(list(EMPTY), self.rng.randint(1, 3))
            values = self._values()
            self._write(Op.UPDATE, key, None, row | {name: values[name] for name in sent}, sent)

    def _write(
        self, op: Op, key: Image, before: Image | None, values: Image, sent: Sequence[str] = tuple(EMPTY)
    ) -> None:
        whole = {name: values[name] for name in EMPTY}
        self.rows[key_text(key)] = (self.version, whole)
        self._add(op, key, before, {**key, **{name: whole[name] for name in EMPTY if name in sent}})

    def _row(self, key: Image) -> Image | None:
        return self.rows.get(key_text(key), (None, None))[1]

    def _values(self) -> Image:
        draw = self.rng.choice
        return {
            "a": draw((None, Decimal("1.50"), Decimal("2"))),
            "b": draw((None, 1_670_792_400_890_000_000)),
            "c": draw((None, "{}", '{"n": 1}')),
        }

    def _add(self, op: Op, key: Image | None, before: Image | None, after: Image | None) -> None:
        event = event_of(SCHEMA, op, before=before, after=after or dict(KEYS[0]))
        self.events.append(msgspec.structs.replace(event, key=key, after=after, version=self.version))


def write(kind: str, folder: Path, name: str, events: Sequence[ChangeEvent]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if kind in LINES:
        lines = RecordLines(EventFormat("srv"), cast(LineContent, kind))
        content = b"".join(json_line(each.line) for event in events for each in lines(event))
    else:
        rows = AvroRows() if kind == "avro" else ParquetRows()
        block = RecordBlock.of([(0, encode_event(event)) for event in events])
        content = b"".join(rows.content([block]))
    ending = "jsonl" if kind in LINES else kind
    (folder / f"{name}.{ending}").write_bytes(content)


def replayed(kind: str, folder: Path, stack: ExitStack, schema: TableSchema = SCHEMA) -> ReplayedFiles:
    if kind in LINES:
        lines = lines_of(envelope_lines(schema, messages=kind == "messages"))
        return ReplayedLines(lines, str(folder), "t", stack)
    return ReplayedFiles(KINDS[kind], str(folder), "t", stack)


def pairs(digests: Any) -> dict[str, bytes]:
    return dict(zip(*(column.to_pylist() for column in digests.columns), strict=True))


def expected(files: ReplayedFiles, history: History) -> dict[str, bytes]:
    """Return the digests of the rows that are not deleted."""
    present = {key: row for key, (_, row) in history.rows.items() if row is not None}
    events = {
        key_text(key): event_of(SCHEMA, Op.READ, after={**key, **present[key_text(key)]})
        for key in KEYS
        if key_text(key) in present
    }
    return pairs(files.expected(SourceRows.of_events(events)))


def foreign_parquet() -> bytes:
    table = pa.table({"id": [1]})
    return parquet_file([table], table.schema)


def foreign_avro() -> bytes:
    content = io.BytesIO()
    fields = [{"name": "id", "type": "int"}]
    fastavro.writer(content, {"type": "record", "name": "Row", "fields": fields}, [{"id": 1}])
    return content.getvalue()


FOREIGN = {"avro": foreign_avro, "parquet": foreign_parquet}


@pytest.mark.slow
@pytest.mark.long_cases("50", "100", "150", seconds=5)
@kinds
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_files_in_any_order_give_the_rows_of_their_changes(first: int, kind: str, tmp_path: Path) -> None:
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        history = History(rng, 40)
        events = list(history.events)
        if seed % 2:
            # Files of the hours of two columns do not sort by time; changes of a file are in their order.
            cuts = sorted(rng.sample(range(1, 40), 5))
            parts = [events[a:b] for a, b in zip([0, *cuts], [*cuts, 40], strict=True)]
            rng.shuffle(parts)
        else:
            rng.shuffle(events)
            parts = [events[:13], events[13:]]
        folder = tmp_path / str(seed)
        with ExitStack() as stack:
            files = replayed(kind, folder, stack)
            assert not files.open(SCHEMA)
            for number, part in enumerate(parts[:-1]):
                write(kind, folder / "t" / "hour=1", f"{number}", part)
            assert files.open(SCHEMA)
            assert files.left_out == []
            write(kind, folder / "t" / "hour=2", "last", parts[-1])
            found = {key: each for part in files.fingerprints() for key, each in pairs(part).items()}
            assert found == expected(files, history), seed
            look = files.look({key_text(key): None for key in KEYS})
        versions = {key: (row.version, row.deleted) for key, row in look.rows.items()}
        known = {key: (version, row is None) for key, (version, row) in history.rows.items()}
        # A TRUNCATE removes tombstones too.
        assert versions == known, seed
        assert look.truncated == (history.truncated.order if history.truncated else None), seed


@kinds
def test_a_row_is_compared_by_its_columns(kind: str, tmp_path: Path) -> None:
    event = event_of(SCHEMA, Op.READ, after={**KEYS[1], **EMPTY, "a": Decimal(1), "c": "{}"})
    write(kind, tmp_path / "t", "1", [event])
    with ExitStack() as stack:
        schema = schema_of({"id": Kind.UINT64, "the code": Kind.BYTES}, c=Kind.JSON, d=Kind.INT64)
        files = replayed(kind, tmp_path, stack, schema)
        assert files.open(schema)
        assert files.left_out == ["d"]
        other = event_of(SCHEMA, Op.READ, after={**KEYS[1], **EMPTY, "c": "[]"})
        key = key_text(KEYS[1])
        assert files.look({key: event}).rows[key] == StoredRow(event.version, False, [])
        assert files.look({key: other}).rows[key].columns == [ColumnDifference("c", "[]", "{}")]
        later = event_of(schema, Op.READ, after={**KEYS[1], "c": "{}", "d": 5})
        assert files.look({key: later}).rows[key].columns == []
        assert files.look({key_text(KEYS[2]): event}).rows == {}


@columnar
def test_files_of_another_program_and_keys_that_files_have_as_text_are_refused(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / f"1.{kind}").write_bytes(FOREIGN[kind]())
    with ExitStack() as stack:
        with pytest.raises(UsageError, match=r"1\.\w+ below .* is no file of change rows"):
            replayed(kind, tmp_path, stack).open(SCHEMA)
        with pytest.raises(UsageError, match="have at of the primary key as text"):
            replayed(kind, tmp_path, stack).open(schema_of({"at": Kind.TIME}))


@kinds
def test_a_folder_of_files_that_begins_like_another_one_is_not_its_table(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path / "t2", "1", [event_of(SCHEMA, Op.READ, after={**KEYS[1], **EMPTY})])
    with ExitStack() as stack:
        assert not replayed(kind, tmp_path, stack).open(SCHEMA)


@kinds
def test_times_after_the_year_2262_are_compared(kind: str, tmp_path: Path) -> None:
    schema = schema_of({"id": Kind.INT64}, at=Kind.LOCAL_TIMESTAMP)
    one, other = (event_of(schema, Op.READ, after={"id": 1, "at": at * 10**21}) for at in (9, 8))
    write(kind, tmp_path / "t", "1", [one])
    with ExitStack() as stack:
        files = replayed(kind, tmp_path, stack, schema)
        assert files.open(schema)
        assert files.expected(SourceRows.of_events({"[1]": one})).equals(next(files.fingerprints()))
        assert files.look({"[1]": one}).rows["[1]"].columns == []
        (found,) = files.look({"[1]": other}).rows["[1]"].columns
        assert found == ColumnDifference("at", f"{8 * 10**21}", f"{9 * 10**21}")


@kinds
def test_a_changed_key_is_found_in_its_canonical_form(kind: str, tmp_path: Path) -> None:
    schema = schema_of({"price": Kind.DECIMAL, "share": Kind.FLOAT64})
    row: Image = {"price": Decimal("2.50"), "share": -0.0}
    key: Image = {"price": Decimal("2.5"), "share": 0.0}
    new: Image = {"price": Decimal(3), "share": 1.0}
    created = event_of(schema, Op.CREATE, after=row)
    created = msgspec.structs.replace(created, key=key, version=Version(1))
    changed = msgspec.structs.replace(event_of(schema, before=row, after=new), version=Version(2))
    write(kind, tmp_path / "t", "1", [created, changed])
    with ExitStack() as stack:
        files = replayed(kind, tmp_path, stack, schema)
        assert files.open(schema)
        (found,) = pairs(next(files.fingerprints()))
        assert found == key_text(new)
        assert files.look({key_text(key): None}).rows[key_text(key)].deleted


@pytest.mark.parametrize("kind", LINES)
def test_lines_have_values_that_no_column_holds(kind: str, tmp_path: Path) -> None:
    schema = schema_of({"at": Kind.TIME}, moment=Kind.TIMESTAMP, day=Kind.DATE)
    row: Image = {"at": 5, "moment": 1_670_792_400_890_000_001, "day": inf}
    event = event_of(schema, Op.READ, after=row)
    write(kind, tmp_path / "t", "1", [event])
    with ExitStack() as stack:
        files = replayed(kind, tmp_path, stack, schema)
        assert files.open(schema)
        assert files.expected(SourceRows.of_events({"[5]": event})).equals(next(files.fingerprints()))
        other = event_of(schema, Op.READ, after={**row, "moment": 1_670_792_400_890_000_000})
        (found,) = files.look({"[5]": other}).rows["[5]"].columns
        assert found.column == "moment"
