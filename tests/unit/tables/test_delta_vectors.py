"""Delta tables whose rows are replaced by deletion vectors: what a commit writes and reads, and the upkeep."""

from __future__ import annotations

import itertools
import json
import struct
import time
import uuid
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.errors import UsageError
from penstock.event import Kind, Version
from penstock.io.delta import WriteToDelta, table_log
from penstock.io.delta.deletion_vectors import (
    Vector,
    created_ms,
    decode,
    encode,
    from_z85,
    new_id,
    rows_in,
    to_z85,
    vectors_of,
)
from penstock.io.delta.folder import LocalFolder
from penstock.io.delta.table_log import Action, AddedFile, LogState, RemovedFile, encoded
from penstock.io.delta.vector_cleanup import milliseconds
from penstock.io.delta.vector_commit import VectorCommit
from penstock.io.staging import TargetUnavailableError
from tests.unit.formats.events import schema_of
from tests.unit.tables.lakes import DeltaLake, published, update
from tests.unit.tables.test_delta import publish
from tests.unit.tables.test_snapshot_rows import row, rows

ENABLED = "delta.enableDeletionVectors"
LIVE, VALID = "not _penstock_deleted", "_penstock_valid_to is null"


@pytest.fixture
def lake(tmp_path: Path) -> DeltaLake:
    return DeltaLake(tmp_path)


@pytest.fixture
def small(lake: DeltaLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.low_limits(monkeypatch)


# --- the format ---------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1 << 40), unique=True).map(sorted))
def test_rows_become_a_vector_and_come_back(numbers: list[int]) -> None:
    positions = np.array(numbers, np.int64)
    assert decode(encode(positions)).tolist() == numbers
    assert list(BitMap64.deserialize(encode(positions)[4:])) == numbers
    name, content, vectors = vectors_of([positions, positions[:1]], new_id(12345))
    assert [rows_in(each, content).tolist() for each in vectors] == [numbers, numbers[:1]]
    assert {each.path for each in vectors} == {name}
    assert created_ms(name.rpartition("/")[2]) == 12345


@given(st.binary().filter(lambda data: len(data) % 4 == 0))
def test_bytes_become_z85_and_come_back(data: bytes) -> None:
    assert from_z85(to_z85(data)) == data


def test_a_vector_is_as_the_protocol_says() -> None:
    """Examples of the protocol: "Deletion Vector Format", "JSON Example 1 and 3", and of Z85 (RFC 32 of ZeroMQ)."""
    assert to_z85(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"
    # The example is of the older form, which has other numbers before the same 32-bit bitmap.
    bitmap = from_z85("wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L")[12:]
    rows = np.array([3, 4, 7, 11, 18, 29])
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    assert (encode(rows), decode(data).tolist()) == (data, rows.tolist())
    inline = Vector("i", to_z85(data), len(data), 6)
    assert rows_in(inline, b"").tolist() == rows.tolist()
    on_disk = Vector("u", "ab^-aqEH.-t@S}K{vb[*k^", 36, 2, 4)
    assert on_disk.path == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert on_disk.id == "uab^-aqEH.-t@S}K{vb[*k^@4"
    _, content, (vector,) = vectors_of([rows], new_id(1))
    assert content == b"\x01" + struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    assert (vector.offset, vector.size_in_bytes, vector.cardinality) == (1, len(data), 6)


def test_a_damaged_vector_and_one_outside_of_the_table_are_refused() -> None:
    _, content, (vector,) = vectors_of([np.array([1, 2])], new_id(1))
    with pytest.raises(UsageError, match="damaged"):
        rows_in(vector, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UsageError, match="OPTIMIZE"):
        _ = Vector("p", "s3://other/v.bin", 1, 1).path


def test_a_file_and_its_vector_are_removed_together() -> None:
    file = AddedFile("f", {}, 1, 1, True, deletion_vector=Vector("u", "x" * 20, 1, 1, 1))
    newer = AddedFile("f", {}, 1, 1, True, deletion_vector=Vector("u", "x" * 20, 1, 2, 9))
    first = LogState("t", -1).after([encoded([Action(add=file)])])
    assert list(first.files.values()) == [file]
    # The order of the lines means nothing.
    entry = encoded([Action(add=newer), Action(remove=RemovedFile.of(file, 1, data_change=True))])
    assert list(first.after([entry]).files.values()) == [newer]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval 7 days", 604_800_000),
        ("INTERVAL 1 week", 604_800_000),
        ("2 hours", 7_200_000),
        ("P7D", None),
    ],
)
def test_a_retention_is_read(text: str, expected: int | None) -> None:
    assert milliseconds(text) == expected


# --- commits ------------------------------------------------------------------------------------------------------


def test_a_commit_of_changes_adds_one_file_of_rows_and_one_of_vectors(lake: DeltaLake) -> None:
    published(lake, [rows(range(500)), [update(3, 7, 3000), update(400, 8, 3001), update(600, 9, 3002)]])
    expected = sorted([(key, {3: 7, 400: 8}.get(key, 0)) for key in range(500)] + [(600, 9)])
    assert lake.rows() == expected
    assert lake.operations() == ["CREATE TABLE", "WRITE", "MERGE"]
    entry = lake.entry()
    adds = [each["add"] for each in entry if "add" in each]
    (remove,) = [each["remove"] for each in entry if "remove" in each]
    assert sorted(json.loads(each["stats"])["numRecords"] for each in adds) == [3, 500]
    (marked,) = [each for each in adds if "deletionVector" in each]
    assert (marked["path"], marked["deletionVector"]["cardinality"]) == (remove["path"], 2)
    assert json.loads(marked["stats"])["tightBounds"] is False
    assert lake.table().transaction_version("sink/job") == (1 << 32) + 3


def test_a_table_gets_property_and_feature_with_its_first_vectors(lake: DeltaLake) -> None:
    published(lake, [rows(range(5)), rows([7])])
    assert lake.table().protocol().min_reader_version == 1
    published(lake, [[update(3, 7, 3000)]], first=4)
    protocol = lake.table().protocol()
    assert (protocol.min_reader_version, protocol.reader_features) == (3, ["deletionVectors"])
    assert set(protocol.writer_features or ()) == {"appendOnly", "deletionVectors", "invariants"}
    assert lake.table().metadata().configuration == {ENABLED: "true", "delta.checkpointInterval": "10"}
    published(lake, [[update(4, 8, 4000)]], first=5, deletion_vectors=False)
    assert sum(each.deletion_vector is not None for each in lake.files()) == 1
    assert lake.rows() == [(0, 0), (1, 0), (2, 0), (3, 7), (4, 8), (7, 0)]


@pytest.mark.parametrize("value", ["false", None])
def test_the_property_of_the_table_decides(lake: DeltaLake, value: str | None) -> None:
    published(lake, [rows(range(5))])
    if value:
        lake.table().alter.set_table_properties({ENABLED: value})
    published(lake, [[update(3, 7, 3000)]], first=3, deletion_vectors=value is not None)
    assert all(each.deletion_vector is None for each in lake.files())
    assert lake.rows() == [(0, 0), (1, 0), (2, 0), (3, 7), (4, 0)]


def test_tables_with_partitions_and_rules_are_merged(lake: DeltaLake) -> None:
    published(lake, [rows(range(5))])
    lake.table().alter.add_constraint({"small": "amount < 100"})
    published(lake, [[update(3, 7, 3000)]], first=3)
    assert all(each.deletion_vector is None for each in lake.files())
    assert lake.rows() == [(0, 0), (1, 0), (2, 0), (3, 7), (4, 0)]


def test_a_log_has_no_deletion_vectors() -> None:
    with pytest.raises(UsageError, match="replaces no rows"):
        WriteToDelta("/t", mode="log", deletion_vectors=True)


def test_an_upkeep_after_a_new_column_of_the_same_epoch_has_the_column(lake: DeltaLake, small: None) -> None:
    """A change with a column that is not sent reads files before the column is added."""
    with pytest.MonkeyPatch.context() as patch:
        lake.without_upkeep(patch)
        published(lake, [rows([key]) for key in range(4)])
    wider = schema_of({"id": Kind.INT64}, note=Kind.STRING)
    after = {"id": 0, "note": "new"}
    partial = msgspec.structs.replace(update(0, 5, 3000), after=after, schema=wider)
    published(lake, [[partial]], first=6)
    assert "OPTIMIZE" in lake.operations()
    assert lake.rows("id", "amount", "note") == [(0, 0, "new"), *((key, 0, None) for key in range(1, 4))]


# --- other writers ------------------------------------------------------------------------------------------------


def test_merges_deletes_and_compactions_of_another_program_stay(lake: DeltaLake) -> None:
    published(lake, [rows(range(20)), [update(3, 7, 3000), update(4, 7, 3001)]])
    lake.table().delete("id = 5")
    published(lake, [[update(6, 8, 4000), update(3, 9, 4001)]], first=4)
    lake.table().optimize.compact()
    assert len(lake.files()) == 1
    published(lake, [[update(7, 9, 5000)]], first=5)
    changes = lake.read(["*"], "id = 8").cast(pa.schema(lake.table().schema().to_arrow()))
    changes = changes.set_column(changes.column_names.index("amount"), "amount", pa.array([99], pa.int64()))
    merge = lake.table().merge(changes, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().execute()
    published(lake, [[update(9, 9, 6000)]], first=6)
    changed = {3: 9, 4: 7, 6: 8, 7: 9, 8: 99, 9: 9}
    assert lake.rows() == [(key, changed.get(key, 0)) for key in range(20) if key != 5]


def test_a_commit_that_another_writer_comes_before_writes_nothing(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = lake.driver()
    publish(driver, rows(range(9)), 2)
    original = LocalFolder.put_entry

    def other_writer(self: LocalFolder, name: str, content: bytes) -> bool:
        monkeypatch.setattr(LocalFolder, "put_entry", original)
        write_deltalake(lake.path, lake.read(["*"], "id = 1").slice(0, 0), mode="append")
        return original(self, name, content)

    monkeypatch.setattr(LocalFolder, "put_entry", other_writer)
    with pytest.raises(TargetUnavailableError, match="another writer"):
        publish(driver, [update(3, 7, 3000)], 3)
    assert lake.rows() == [(key, 0) for key in range(9)]
    publish(driver, [update(3, 7, 3000)], 3)
    assert lake.rows() == [(key, 7 if key == 3 else 0) for key in range(9)]


class Steps:
    """Calls of a function, of which one raises KeyboardInterrupt: before or after its work."""

    def __init__(self, function: Any, after: bool) -> None:
        self.function, self.after, self.deaths, self.left = function, after, 0, 0

    def __call__(self, *arguments: Any) -> Any:
        self.left -= 1
        if self.left == -1 and not self.after:
            self._die()
        found = self.function(*arguments)
        if self.left == -1:
            self._die()
        return found

    def _die(self) -> None:
        self.deaths += 1
        raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["create", "sync", "put_entry", "read"])
def test_a_driver_that_dies_at_any_step_repeats_nothing_and_loses_nothing(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch, call: str, after: bool
) -> None:
    epochs = [[update(key, n, 1000 * n) for key in range(n, n + 3)] for n in range(2, 9)]
    steps = Steps(getattr(LocalFolder, call), after)
    monkeypatch.setattr(LocalFolder, call, lambda *arguments: steps(*arguments))
    for number, events in enumerate(epochs, 2):
        for step in itertools.count():
            steps.left = step
            # A driver that starts knows nothing.
            table_log._known.clear()
            try:
                publish(lake.driver(), events, number)
                break
            except KeyboardInterrupt:
                continue
        steps.left = -1
        assert lake.rows() == [(key, min(key, number)) for key in range(2, number + 3)]
    assert steps.deaths


# --- what is read -------------------------------------------------------------------------------------------------


def test_an_epoch_reads_the_entries_of_the_log_since_the_last_one(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(lake, [rows(range(9)), [update(1, 1, 3000)], [update(2, 1, 4000)], [update(3, 1, 4001)]])
    read: list[str] = []
    original = LocalFolder.read_entry

    def watched(self: LocalFolder, name: str) -> bytes:
        read.append(name)
        return original(self, name)

    monkeypatch.setattr(LocalFolder, "read_entry", watched)
    published(lake, [[update(4, 1, 5000)]], first=6)
    assert read == [table_log.entry_name(4)]
    table_log._known.clear()
    published(lake, [[update(5, 1, 6000)]], first=7)
    assert lake.rows() == [(key, 1 if 0 < key < 6 else 0) for key in range(9)]


def test_another_table_in_the_same_folder_is_not_taken_for_the_first_one(lake: DeltaLake) -> None:
    published(lake, [rows(range(9)), [update(1, 1, 3000)]])
    lake.path.rename(lake.path.parent / "old")
    published(lake, [rows(range(3)), [update(1, 5, 3000)], [update(2, 5, 4000)]])
    assert lake.rows() == [(0, 0), (1, 5), (2, 5)]


# --- the log and the vectors --------------------------------------------------------------------------------------


def test_checkpoints_are_made_in_their_interval_and_vectors_survive_them(lake: DeltaLake) -> None:
    driver = lake.driver()
    publish(driver, rows(range(30)), 2)
    lake.table().alter.set_table_properties({"delta.checkpointInterval": "5"})
    for number in range(3, 16):
        publish(driver, [update(number, number, 1000 * number)], number)
    checkpoints = sorted(
        int(each.name[:20]) for each in (lake.path / "_delta_log").glob("*.checkpoint.parquet")
    )
    assert checkpoints == list(range(4, lake.table().version() + 1, 5))
    table_log._known.clear()
    publish(lake.driver(), [update(16, 16, 16_000)], 16)
    assert lake.rows() == [(key, key if 3 <= key <= 16 else 0) for key in range(30)]


@pytest.mark.parametrize("full", [False, True])
def test_a_vacuum_leaves_vectors_that_are_used(lake: DeltaLake, full: bool) -> None:
    published(lake, [rows(range(9)), [update(1, 1, 3000)], [update(2, 1, 4000)]])
    lake.table().vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)
    assert lake.rows() == [(key, 1 if key in (1, 2) else 0) for key in range(9)]
    published(lake, [[update(3, 1, 5000)]], first=5)
    assert lake.rows() == [(key, 1 if key in (1, 2, 3) else 0) for key in range(9)]


def test_vectors_that_no_version_needs_any_more_are_deleted(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = lake.driver()
    publish(driver, rows(range(30)), 2)
    lake.table().alter.set_table_properties({"delta.checkpointInterval": "5"})
    orphan = new_id(1)
    for number in range(3, 8):
        publish(driver, [update(number, number, 1000 * number)], number)
    (lake.path / "_penstock_vectors" / f"deletion_vector_{orphan}.bin").write_bytes(b"")
    assert len(lake.vectors()) == 6
    for number in range(8, 12):
        publish(driver, [update(number, number, 1000 * number)], number)
    # The orphan is old. All others are younger than seven days.
    assert len(lake.vectors()) == 9
    lake.table().alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    time.sleep(0.002)
    for number in range(12, 18):
        publish(driver, [update(number, number, 1000 * number)], number)
    assert len(lake.vectors()) < 6
    assert lake.rows() == [(key, key if 3 <= key <= 17 else 0) for key in range(30)]


def test_a_mark_and_the_keys_of_a_snapshot_are_kept_with_vectors(lake: DeltaLake) -> None:
    driver = lake.driver()
    publish(driver, rows(range(5)), 2)
    publish(driver, [update(1, 1, 3000)], 3)
    publish(driver, [row(key, 0, Version(4000)) for key in range(10, 15)], 4)
    assert lake.operations() == ["CREATE TABLE", "WRITE", "MERGE", "WRITE"]
    commit = driver.newest(str(lake.path), "sink", "job")
    assert isinstance(commit, VectorCommit)
    assert [each["id"] for each in commit.rows_with(["[1]", "[12]"])] == [1, 12]
    assert sum(part.num_rows for part in commit.read_columns(["id"])) == 10


def test_ids_of_vectors_have_the_time_and_differ() -> None:
    first, second = new_id(77), new_id(77)
    assert first != second
    assert (first.version, uuid.UUID(str(second)).version) == (7, 7)
    assert created_ms(f"deletion_vector_{uuid.uuid4()}.bin") is None
