"""Iceberg tables whose rows are replaced by position deletes: what a commit writes and reads, and the upkeep."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import FileFormat
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Op, Version
from penstock.io.columnar import upkeep
from penstock.io.columnar.arrow_rows import new_table_schema
from penstock.io.columnar.open_file import OpenFile
from penstock.io.columnar.positions import are_in, joined
from penstock.io.columnar.upkeep import FULL_BYTES, TOGETHER, FileSize, files_to_rewrite
from penstock.io.iceberg import row_delta, target
from penstock.io.iceberg.open_file import opened
from penstock.io.iceberg.snapshot_files import SnapshotFiles
from penstock.io.iceberg.target import IcebergTarget
from penstock.io.staging import TargetUnavailableError
from tests.unit.tables import histories
from tests.unit.tables.histories import SCHEMA, Writer
from tests.unit.tables.test_delta import publish
from tests.unit.tables.test_snapshot_rows import row, rows


class Lake:
    """A catalogue in SQLite, and the sink of its table `shop.t`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }

    def driver(self, mode: Any = "current") -> Any:
        return IcebergTarget("shop.t", "test", mode, "evolve", self.properties, tombstone_seconds=1000)

    def catalog(self) -> Any:
        return load_catalog("test", **self.properties)

    def table(self) -> Table:
        found: Table = self.catalog().load_table("shop.t")
        return found

    def made(self, **options: Any) -> Table:
        """Make the table as another program does."""
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists("shop")
        shape = new_table_schema(SCHEMA, "current")
        found: Table = catalog.create_table("shop.t", schema=shape, **options)
        return found

    def found(self, *columns: str, valid: str = "_penstock_deleted == false") -> list[tuple[Any, ...]]:
        rows = self.table().scan(row_filter=valid).to_arrow().select(columns or ("id", "amount"))
        return sorted(tuple(each.values()) for each in rows.to_pylist())

    def files(self) -> tuple[list[str], list[str]]:
        """Return the paths of data files, and of files with position deletes."""
        files = SnapshotFiles(self.table())
        held = ([each.data_file.file_path for each in some] for some in (files.data, files.deletes))
        return next(held), next(held)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a history of some rows reaches."""
    monkeypatch.setattr(target, "GROUP_ROWS", 3)
    monkeypatch.setattr(upkeep, "GROUP_ROWS", 4)
    monkeypatch.setattr(upkeep, "TOGETHER", 3)
    monkeypatch.setattr(upkeep, "WORN_ROWS", 4)
    monkeypatch.setattr(row_delta, "DELETE_FILES", 3)
    monkeypatch.setattr(row_delta, "MANIFESTS", 3)


def update(key: int, amount: int, version: int, **more: Any) -> ChangeEvent:
    return row(key, amount, Version(version), **{"op": Op.UPDATE, **more})


def published(
    lake: Lake, epochs: Sequence[Sequence[ChangeEvent]], first: int = 2, mode: Any = "current"
) -> None:
    driver = lake.driver(mode)
    for number, events in enumerate(epochs, first):
        publish(driver, list(events), number)


def read_columns(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...] | None]:
    """Return a list of the columns that are read of row groups from now on."""
    found: list[tuple[str, ...] | None] = []
    original = OpenFile.rows

    def watched(self: OpenFile, number: int, columns: Any, places: Any = None) -> Any:
        found.append(None if columns is None else tuple(columns))
        return original(self, number, columns, places)

    monkeypatch.setattr(OpenFile, "rows", watched)
    return found


def test_a_commit_of_changes_adds_one_file_of_rows_and_one_of_deletes(lake: Lake) -> None:
    published(lake, [rows(range(500)), [update(3, 7, 3000), update(400, 8, 3001), update(600, 9, 3002)]])
    (first, second), (deletes,) = lake.files()
    assert lake.found() == sorted([(key, {3: 7, 400: 8}.get(key, 0)) for key in range(500)] + [(600, 9)])
    assert len(lake.table().snapshots()) == 2
    written = pyarrow.parquet.read_table(second.removeprefix("file://"))
    assert written.column("id").to_pylist() == [3, 400, 600]
    marked = pyarrow.parquet.read_table(deletes.removeprefix("file://"))
    assert marked.to_pylist() == [{"file_path": first, "pos": 3}, {"file_path": first, "pos": 400}]


def test_the_metadata_of_deletes_is_as_the_specification_says(lake: Lake) -> None:
    """Read with another library: "Manifests", "Manifest Lists" and "Position Delete Files" of version 2."""
    published(lake, [rows(range(5)), [update(3, 7, 3000)]])
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    with Path(snapshot.manifest_list.removeprefix("file://")).open("rb") as stream:
        (listed,) = [each for each in fastavro.reader(stream) if each["content"] == 1]
    assert (listed["sequence_number"], listed["min_sequence_number"], listed["added_rows_count"]) == (2, 2, 1)
    with Path(listed["manifest_path"].removeprefix("file://")).open("rb") as stream:
        manifest = fastavro.reader(stream)
        (entry,) = manifest
        assert manifest.metadata["content"] == "deletes"
    # The sequence number of an added file is that of the commit, which the list has.
    assert (entry["status"], entry["sequence_number"]) == (1, None)
    file = entry["data_file"]
    assert (file["content"], file["file_format"], file["record_count"]) == (1, "PARQUET", 1)
    shape = pyarrow.parquet.read_schema(file["file_path"].removeprefix("file://"))
    ids = [int(each.metadata[b"PARQUET:field_id"]) for each in shape]
    assert list(zip(shape.names, shape.types, ids, strict=True)) == [
        ("file_path", pa.string(), 2147483546),
        ("pos", pa.int64(), 2147483545),
    ]


@pytest.mark.parametrize("mode", ["current", "history"])
@pytest.mark.usefixtures("small")
def test_tables_with_upkeep_are_the_table_of_the_source_after_every_epoch(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    monkeypatch.setattr(histories, "KEYS", 20)
    writer, rng = Writer(7), random.Random(7)
    driver, sent = lake.driver(mode), []
    valid = "_penstock_deleted == false" if mode == "current" else "_penstock_valid_to is null"
    for number in range(2, 26):
        events = writer.changes(rng.randint(3, 12))
        late = rng.sample(sent, min(len(sent), 2))
        publish(driver, late + events, number)
        sent += events
        assert lake.found("id", "name", "amount", valid=valid) == [each[:3] for each in writer.current()]
    operations = [each.summary.operation.value for each in lake.table().snapshots() if each.summary]
    assert "replace" in operations
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(lake.table().io)) <= 2 * (row_delta.MANIFESTS + 1)
    data, deletes = lake.files()
    assert (len(data) < 16, len(deletes) <= row_delta.DELETE_FILES) == (True, True)


@pytest.mark.usefixtures("small")
def test_the_upkeep_changes_no_row_of_a_history(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [[update(key, number, 1000 * number) for key in range(number % 4, 9)] for number in range(2, 12)]
    published(lake, events, mode="history")
    kept = lake.folder / "kept"
    kept.mkdir()
    other = Lake(kept)
    monkeypatch.setattr(target, "entries_to_rewrite", lambda files: [])
    published(other, events, mode="history")
    names = ("id", "amount", "_penstock_version", "_penstock_valid_to", "_penstock_ended_by")
    everything = [each.table().scan().to_arrow().select(names).to_pylist() for each in (lake, other)]
    assert len(lake.files()[0]) < len(other.files()[0])
    assert sorted(map(str, everything[0])) == sorted(map(str, everything[1]))


def test_rows_deletes_and_ledger_are_one_commit(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = lake.driver()
    publish(driver, rows(range(9)), 2)
    commit = SqlCatalog.commit_table

    def die(*arguments: Any) -> Any:
        commit(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(SqlCatalog, "commit_table", die)
    with pytest.raises(KeyboardInterrupt):
        publish(driver, [update(3, 7, 3000)], 3)
    monkeypatch.undo()
    before = lake.table().metadata_location
    publish(lake.driver(), [update(3, 7, 3000)], 3)
    assert lake.table().metadata_location == before
    assert lake.found() == [(key, 7 if key == 3 else 0) for key in range(9)]


def test_files_that_cannot_have_a_changed_key_are_not_opened(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(lake, [rows(range(100, 200)), rows(range(300, 400))])
    read: list[str] = []
    original = OpenFile.__init__

    def watched(self: OpenFile, path: str, stream: Any) -> None:
        read.append(path)
        original(self, path, stream)

    monkeypatch.setattr(OpenFile, "__init__", watched)
    published(lake, [[update(350, 1, 3000)]], first=4)
    assert len(read) == 1
    assert (350, 1) in lake.found()


def test_a_whole_row_is_written_after_a_look_at_the_keys_only(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(lake, [rows(range(100))])
    read = read_columns(monkeypatch)
    published(lake, [[update(50, 1, 3000)]], first=3)
    assert set(read) == {("_penstock_key",)}


def test_an_older_change_leaves_the_row_and_its_place(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lake, [[update(key, 5, 1500 + 500 * key) for key in range(4)]])
    read = read_columns(monkeypatch)
    published(lake, [[update(2, 1, 2400), update(3, 6, 4000)]], first=3)
    assert ("_penstock_key", "_penstock_version") in read
    assert lake.found() == [(0, 5), (1, 5), (2, 5), (3, 6)]
    assert [len(each) for each in SnapshotFiles(lake.table()).gone.values()] == [1]
    before = lake.table().current_snapshot()
    published(lake, [[update(2, 1, 2400)]], first=4)
    assert lake.table().current_snapshot() == before


def test_a_file_whose_rows_are_all_replaced_is_removed(lake: Lake) -> None:
    published(lake, [rows(range(4)), [update(9, 1, 3000)]])
    (first, other), _ = lake.files()
    published(
        lake, [[update(0, 1, 4000), update(1, 1, 4001)], [update(2, 1, 5000), update(3, 1, 5001)]], first=4
    )
    data, deletes = lake.files()
    assert first not in data
    assert other in data
    assert deletes == []
    assert lake.found() == [(0, 1), (1, 1), (2, 1), (3, 1), (9, 1)]


def test_a_truncate_removes_files_and_newer_rows_stay(lake: Lake) -> None:
    truncate = update(0, 0, 3000, op=Op.TRUNCATE)
    published(lake, [rows(range(50)), [update(1, 7, 5000)], [truncate]])
    assert lake.found() == [(1, 7)]
    assert len(lake.files()[0]) == 1


@pytest.mark.usefixtures("small")
def test_the_upkeep_that_meets_another_commit_is_left_out_and_the_epoch_stays(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [[update(key, number, 1000 * number) for key in (number, number + 1)] for number in range(2, 8)]
    driver, original, met = lake.driver(), target.rewritten, []

    def other_writer(files: Any, chosen: Any) -> Any:
        lake.table().append(lake.table().scan(row_filter="id == 2").to_arrow())
        met.append(chosen)
        return original(files, chosen)

    monkeypatch.setattr(target, "rewritten", other_writer)
    for number, some in enumerate(events, 2):
        try:
            publish(driver, some, number)
        except TargetUnavailableError:
            publish(driver, some, number)
        if met:
            break
    assert met
    assert sorted(set(lake.found())) == [(key, min(key, number)) for key in range(2, number + 2)]


def test_deletes_and_rewrites_of_another_program_stay(lake: Lake) -> None:
    published(lake, [rows(range(20)), [update(3, 7, 3000), update(4, 7, 3001)]])
    lake.table().delete("id == 5")
    published(lake, [[update(6, 8, 4000), update(3, 9, 4001)]], first=4)
    changed = {3: 9, 4: 7, 6: 8}
    assert lake.found() == [(key, changed.get(key, 0)) for key in range(20) if key != 5]


def test_a_table_with_partitions_has_deletes_for_each_partition(lake: Lake) -> None:
    with lake.made().update_spec() as change:
        change.add_field("amount", IdentityTransform(), "amount")
    first = [row(key, key % 3) for key in range(20)]
    published(lake, [first, [update(key, 7, 3000 + key) for key in range(0, 20, 2)]])
    assert lake.found() == [(key, 7 if key % 2 == 0 else key % 3) for key in range(20)]
    files = SnapshotFiles(lake.table())
    assert {str(each.data_file.partition) for each in files.deletes} == {f"Record[{n}]" for n in range(3)}


def test_a_table_of_version_1_gets_version_2_with_its_first_deletes(lake: Lake) -> None:
    lake.made(properties={"format-version": "1"})
    published(lake, [rows(range(5))])
    assert lake.table().metadata.format_version == 1
    published(lake, [[update(3, 7, 3000)], [update(4, 8, 4000)]], first=3)
    assert lake.table().metadata.format_version == 2
    assert lake.found() == [(0, 0), (1, 0), (2, 0), (3, 7), (4, 8)]


def test_a_table_of_version_3_is_refused_with_the_remedy(lake: Lake) -> None:
    driver = lake.driver()
    publish(driver, rows(range(5)), 2)
    opened_table = lake.table()
    opened_table.metadata = opened_table.metadata.model_copy(update={"format_version": 3})
    commit = driver._begin(
        opened_table, "shop.t", SimpleNamespace(writer="s/j", position=(1, 3, ""), epoch=3)
    )
    with pytest.raises(UsageError, match="format-version=2"):
        commit.write(pa.table({}), alters=False, removed={}, entries={})


def test_files_of_another_format_are_refused_with_the_remedy(lake: Lake) -> None:
    published(lake, [rows(range(2))])
    with (
        pytest.raises(UsageError, match="as Parquet"),
        opened(lake.table(), SimpleNamespace(file_format=FileFormat.ORC)),
    ):
        pass


def size(left: int, *, rows: int = 1000, gone: int = 0) -> FileSize:
    return FileSize(f"{left}-{rows}-{gone}", left * rows // (rows - gone), rows, gone)


def test_files_are_merged_when_there_are_enough_of_one_size() -> None:
    small, large = (
        [size(60_000 + n) for n in range(TOGETHER)],
        [size(3_000_000 + n) for n in range(TOGETHER - 1)],
    )
    assert files_to_rewrite(small[1:] + large) == []
    assert files_to_rewrite(large + small) == small


def test_a_file_with_many_deleted_rows_is_written_again_and_a_small_one_is_not() -> None:
    worn, less = size(10**6, rows=100_000, gone=30_000), size(10**6, rows=100_000, gone=24_000)
    little = size(10**4, rows=1000, gone=900)
    assert files_to_rewrite([less, little]) == []
    assert files_to_rewrite([less, worn, little]) == [worn]


@given(
    st.lists(
        st.builds(
            lambda length, rows, share: FileSize(str(length), length, rows, int(rows * share)),
            st.integers(1, 3 * FULL_BYTES),
            st.integers(1, 10**7),
            st.floats(0, 0.99),
        ),
        max_size=40,
    )
)
def test_an_upkeep_is_bounded_and_comes_to_an_end(files: list[FileSize]) -> None:
    for _ in range(100):
        chosen = files_to_rewrite(files)
        if not chosen:
            break
        left = sum(each.left for each in chosen)
        assert len(chosen) == 1 or left <= FULL_BYTES
        merged = FileSize("merged", left, sum(each.rows - each.gone for each in chosen), 0)
        files = [each for each in files if each not in chosen] + [merged]
    else:
        pytest.fail("the upkeep has always something to do")


@given(
    st.lists(st.lists(st.integers(0, 60), max_size=20), max_size=5), st.lists(st.integers(0, 60), unique=True)
)
def test_positions_are_joined_and_found_again(parts: list[list[int]], asked: list[int]) -> None:
    found = joined({"f": pa.array(each, pa.int64()).to_numpy()} for each in parts)
    expected = sorted({each for part in parts for each in part})
    assert found.get("f", pa.array([], pa.int64()).to_numpy()).tolist() == expected
    positions = pa.array(asked, pa.int64()).to_numpy()
    if expected:
        assert are_in(positions, found["f"]).tolist() == [each in expected for each in asked]
