"""Iceberg tables whose rows are replaced by position deletes: what a commit writes and reads, and the upkeep."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import FileFormat
from pyiceberg.transforms import IdentityTransform

from penstock.errors import UsageError
from penstock.io.columnar.positions import are_in, joined
from penstock.io.columnar.upkeep import FULL_BYTES, TOGETHER, FileSize, files_to_rewrite
from penstock.io.iceberg.open_file import opened
from penstock.io.iceberg.snapshot_files import SnapshotFiles
from tests.unit.tables.lakes import IcebergLake, published, update
from tests.unit.tables.test_delta import publish
from tests.unit.tables.test_snapshot_rows import row, rows


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    return IcebergLake(tmp_path)


def test_a_commit_of_changes_adds_one_file_of_rows_and_one_of_deletes(lake: IcebergLake) -> None:
    published(lake, [rows(range(500)), [update(3, 7, 3000), update(400, 8, 3001), update(600, 9, 3002)]])
    (first, second), (deletes,) = lake.files()
    assert lake.rows() == sorted([(key, {3: 7, 400: 8}.get(key, 0)) for key in range(500)] + [(600, 9)])
    assert len(lake.table().snapshots()) == 2
    written = pyarrow.parquet.read_table(second.removeprefix("file://"))
    assert written.column("id").to_pylist() == [3, 400, 600]
    marked = pyarrow.parquet.read_table(deletes.removeprefix("file://"))
    assert marked.to_pylist() == [{"file_path": first, "pos": 3}, {"file_path": first, "pos": 400}]


def test_the_metadata_of_deletes_is_as_the_specification_says(lake: IcebergLake) -> None:
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


def test_rows_deletes_and_ledger_are_one_commit(lake: IcebergLake, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert lake.rows() == [(key, 7 if key == 3 else 0) for key in range(9)]


def test_deletes_and_rewrites_of_another_program_stay(lake: IcebergLake) -> None:
    published(lake, [rows(range(20)), [update(3, 7, 3000), update(4, 7, 3001)]])
    lake.table().delete("id == 5")
    published(lake, [[update(6, 8, 4000), update(3, 9, 4001)]], first=4)
    changed = {3: 9, 4: 7, 6: 8}
    assert lake.rows() == [(key, changed.get(key, 0)) for key in range(20) if key != 5]


def test_a_table_with_partitions_has_deletes_for_each_partition(lake: IcebergLake) -> None:
    with lake.created().update_spec() as change:
        change.add_field("amount", IdentityTransform(), "amount")
    first = [row(key, key % 3) for key in range(20)]
    published(lake, [first, [update(key, 7, 3000 + key) for key in range(0, 20, 2)]])
    assert lake.rows() == [(key, 7 if key % 2 == 0 else key % 3) for key in range(20)]
    files = SnapshotFiles(lake.table())
    assert {str(each.data_file.partition) for each in files.deletes} == {f"Record[{n}]" for n in range(3)}


def test_a_table_of_version_1_gets_version_2_with_its_first_deletes(lake: IcebergLake) -> None:
    lake.created(properties={"format-version": "1"})
    published(lake, [rows(range(5))])
    assert lake.table().metadata.format_version == 1
    published(lake, [[update(3, 7, 3000)], [update(4, 8, 4000)]], first=3)
    assert lake.table().metadata.format_version == 2
    assert lake.rows() == [(0, 0), (1, 0), (2, 0), (3, 7), (4, 8)]


def test_a_table_of_version_3_is_refused_with_the_remedy(lake: IcebergLake) -> None:
    driver = lake.driver()
    publish(driver, rows(range(5)), 2)
    opened_table = lake.table()
    opened_table.metadata = opened_table.metadata.model_copy(update={"format_version": 3})
    commit = driver._begin(
        opened_table, "shop.t", SimpleNamespace(writer="s/j", position=(1, 3, ""), epoch=3)
    )
    with pytest.raises(UsageError, match="format-version=2"):
        commit.write(pa.table({}), alters=False, removed={}, entries={})


def test_files_of_another_format_are_refused_with_the_remedy(lake: IcebergLake) -> None:
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


@pytest.mark.slow
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
