"""Old versions of tables are forgotten with their files; later ones stay readable, whatever dies in between."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from penstock.errors import UsageError
from penstock.io.columnar import old_versions, table_target
from penstock.io.columnar.old_versions import OldVersion, forgotten_versions, is_due
from penstock.io.delta import WriteToDelta
from penstock.io.delta.folder import LocalFolder
from penstock.io.delta.old_files import files_to_delete
from penstock.io.delta.table_log import RemovedFile
from penstock.io.delta.target import DeltaTarget
from penstock.io.iceberg import WriteToIceberg, old_snapshots
from penstock.io.iceberg.files import FilesOfIo
from penstock.io.iceberg.target import IcebergTarget
from tests.simulation.staging.epochs import Crash, CrashPoint
from tests.unit.tables.histories import Writer, split
from tests.unit.tables.lakes import FORMATS, DeltaLake, IcebergLake, Lake, published, update
from tests.unit.tables.test_delta import publish
from tests.unit.tables.test_partitions import ALL, commit, logged, write
from tests.unit.tables.test_snapshot_rows import rows

pytestmark = pytest.mark.long(seconds=10)

DAY = 86_400.0
Versions = dict[int, list[tuple[Any, ...]]]
"""The rows of each version that can be read, by its number."""


@pytest.fixture(params=ALL)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return ALL[request.param](tmp_path)


# --- which versions -----------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6).map(sorted), st.integers(-1, 10), st.integers(0, 3)
)
@example([5, 20], 10, 0)
@example([5, 9, 20], 10, 0)
def test_a_version_that_can_be_asked_for_is_never_forgotten(
    times: list[int], before: int, later: int
) -> None:
    versions = [OldVersion(number, ms) for number, ms in enumerate(times)]
    gone = forgotten_versions(versions, before)
    assert gone == versions[: len(gone)] != versions
    asked = [each for each in versions if each.committed_ms <= before + later]
    assert not asked or asked[-1] not in gone
    if len(gone) < len(versions) - 1:
        assert versions[len(gone) + 1].committed_ms >= before, "a version stays that nobody can ask for"


def test_old_versions_are_forgotten_once_in_a_part_of_their_time() -> None:
    assert not is_due(None, 5.0, 0)
    assert is_due(None, 5.0, DAY)
    assert [is_due(10.0, 10.0 + later, DAY) for later in (0, 3599, 3600)] == [False, False, True]


def test_a_file_stays_while_a_newer_version_of_its_rows_or_a_reader_needs_it() -> None:
    def removed(path: str, ms: int | None) -> RemovedFile:
        return RemovedFile(path, True, ms)

    files = [
        removed("old%20one", 5),
        removed("recent", 10),
        removed("earlier", 1),
        removed("with-a-newer-vector", 5),
        removed("later-with-another-vector", 5),
        removed("later-with-another-vector", 12),
        removed("s3://other/f", 5),
        removed("/elsewhere/f", 5),
        removed("unknown", None),
    ]
    assert files_to_delete(["with-a-newer-vector"], files, 10, 2) == {"old one"}


@pytest.mark.parametrize("name", ["version_seconds", "max_index_bytes"])
def test_a_negative_number_is_refused(tmp_path: Path, name: str) -> None:
    makers: list[Any] = [
        lambda **more: WriteToDelta(tmp_path / "t", **more),
        lambda **more: WriteToIceberg("s.t", **more),
    ]
    for make in makers:
        with pytest.raises(UsageError, match=f"{name} must be 0 or more"):
            make(**{name: -1})


# --- tables -------------------------------------------------------------------------------------------------------


def committed(lake: Lake) -> list[OldVersion]:
    """Return the versions that the metadata of the table have, oldest first."""
    if isinstance(lake, DeltaLake):
        return [OldVersion(each["version"], each["timestamp"]) for each in reversed(lake.table().history())]
    assert isinstance(lake, IcebergLake)
    snapshots = sorted(lake.table().metadata.snapshots, key=lambda each: each.sequence_number or 0)
    return [OldVersion(each.snapshot_id, each.timestamp_ms) for each in snapshots]


def rows_at(lake: Lake, version: int) -> list[tuple[Any, ...]]:
    if isinstance(lake, DeltaLake):
        table = DeltaTable(lake.path, version=version)
        found = pa.table(QueryBuilder().register("t", table).execute("select * from t"))
    else:
        assert isinstance(lake, IcebergLake)
        found = lake.table().scan(snapshot_id=version).to_arrow()
    return sorted(
        (tuple(each.values()) for each in found.select(sorted(found.column_names)).to_pylist()), key=repr
    )


def files_of(lake: Lake, versions: Sequence[int]) -> set[str]:
    """Return the names of all files that some versions need, besides those of metadata."""
    found: set[str] = set()
    for version in versions:
        if isinstance(lake, DeltaLake):
            found |= {uri.rpartition("/")[2] for uri in DeltaTable(lake.path, version=version).file_uris()}
            continue
        assert isinstance(lake, IcebergLake)
        table = lake.table()
        snapshot = table.snapshot_by_id(version)
        assert snapshot is not None
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {each.data_file.file_path for each in manifest.fetch_manifest_entry(table.io)}
    return {path.rpartition("/")[2] for path in found}


def stored(lake: Lake) -> set[str]:
    """Return the names of the files that are there, besides those of metadata."""
    return {
        path.name
        for path in lake.folder.rglob("*")
        if path.suffix in (".parquet", ".avro") and "checkpoint" not in path.name
    }


def aged(lake: Lake, mode: Any, part: float = 0.5, count: int = 30) -> tuple[Writer, int, int]:
    """Publish a history; return its writer, the place of the version after a part of it, and a moment after that."""
    writer, driver, rng = Writer(5), lake.driver(mode), random.Random(5)
    epochs = split(writer.changes(count, truncates=False), rng)
    place = moment = 0
    for number, events in enumerate(epochs):
        publish(driver, events, number + 2)
        if number == int(len(epochs) * part):
            place, moment = len(committed(lake)) - 1, _next_ms()
    _next_ms()
    return writer, place, moment


def _next_ms() -> int:
    """Return the next millisecond when it has begun: times of versions have no smaller parts."""
    begun = time.time_ns() // 1_000_000
    while (now := time.time_ns() // 1_000_000) <= begun:
        pass
    return now


@contextmanager
def at(moment_ms: int) -> Iterator[None]:
    """Let it be a day after a moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_target, "_now_ms", lambda: moment_ms + int(DAY * 1000))
        yield


def forget(lake: Lake, mode: Any, writer: Writer, number: int = 90) -> None:
    """Publish one more epoch by a driver that forgets versions after a day."""
    publish(lake.driver(mode, version_seconds=DAY), writer.changes(3, truncates=False), number)


def check_kept(lake: Lake, before: Versions, kept: Sequence[int]) -> None:
    """Check that versions have the rows that they had, and that there are no other files than theirs."""
    assert {number: rows_at(lake, number) for number in kept} == {number: before[number] for number in kept}
    numbers = [each.number for each in committed(lake)]
    newer = numbers[numbers.index(kept[-1]) :]
    assert stored(lake) == files_of(lake, [*kept, *newer])


@pytest.mark.parametrize("mode", ["current", "history"])
@pytest.mark.parametrize("part", [0.3, 0.8])
def test_versions_from_a_moment_on_stay_and_files_of_older_ones_go(
    lake: Lake, mode: Any, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.low_limits(monkeypatch)
    writer, place, moment = aged(lake, mode, part)
    versions = committed(lake)
    before = {each.number: rows_at(lake, each.number) for each in versions}
    with at(moment):
        forget(lake, mode, writer)
    kept = [each.number for each in versions[place:]]
    check_kept(lake, before, kept)
    assert lake.rows("id", "amount", mode=mode) == [(id_, amount) for id_, _, amount, _ in writer.current()]
    if isinstance(lake, IcebergLake):
        assert {each.number for each in committed(lake)} & set(before) == set(kept)


@pytest.mark.parametrize("seconds", [0, DAY])
def test_metadata_of_a_table_of_the_sink_does_not_grow_with_its_commits(
    tmp_path: Path, seconds: float
) -> None:
    lake = IcebergLake(tmp_path)
    writer, driver = Writer(5), lake.driver("current", version_seconds=seconds)
    publish(driver, writer.changes(1), 1)
    with lake.table().transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "3"})
    for number in range(2, 12):
        publish(driver, writer.changes(1), number)
    count = len(list(lake.folder.rglob("*.metadata.json")))
    assert count == 4 if seconds else count > 10


def test_without_the_option_nothing_is_deleted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.low_limits(monkeypatch)
    writer, _, _ = aged(lake, "current")
    versions = committed(lake)
    before = {each.number: rows_at(lake, each.number) for each in versions}
    with at(versions[-1].committed_ms + 1):
        publish(lake.driver("current"), writer.changes(3), 90)
    check_kept(lake, before, list(before))


def test_versions_are_forgotten_a_part_after_each_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = IcebergLake(tmp_path)
    writer, _, _ = aged(lake, "current")
    count = len(committed(lake))
    monkeypatch.setattr(old_snapshots, "AT_ONCE", 3)
    driver = lake.driver("current", version_seconds=DAY)
    left = []
    with at(committed(lake)[-1].committed_ms + 1):
        for number in range(90, 90 + count):
            publish(driver, writer.changes(1, truncates=False), number)
            left.append(len(committed(lake)))
    assert 3 < count - 1 <= 6
    # Three, and then the others; not again before a part of the time has passed.
    assert left == [count - 2, *range(3, count + 2)]


def test_a_table_with_a_tag_keeps_all_its_snapshots(tmp_path: Path, caplog: Any) -> None:
    old_versions.warn_of_kept_versions.cache_clear()
    lake = IcebergLake(tmp_path)
    writer, _, _ = aged(lake, "current", count=12)
    versions = committed(lake)
    lake.table().manage_snapshots().create_tag(versions[1].number, "audit").commit()
    before = {each.number: rows_at(lake, each.number) for each in versions}
    with at(versions[-1].committed_ms + 1):
        forget(lake, "current", writer)
    check_kept(lake, before, list(before))
    assert "branches or tags" in caplog.text


def test_a_delta_table_that_forgets_removed_files_earlier_keeps_them(tmp_path: Path, caplog: Any) -> None:
    old_versions.warn_of_kept_versions.cache_clear()
    lake = DeltaLake(tmp_path)
    writer, _, _ = aged(lake, "current", count=12)
    lake.table().alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 1 hours"})
    versions = committed(lake)
    before = {each.number: rows_at(lake, each.number) for each in versions}
    with at(versions[-1].committed_ms + 1):
        forget(lake, "current", writer)
    check_kept(lake, before, list(before))
    assert "delta.deletedFileRetentionDuration" in caplog.text


def test_files_that_the_checkpoint_has_as_removed_go_too(tmp_path: Path) -> None:
    lake = DeltaLake(tmp_path)
    published(lake, [rows(range(3))])
    published(lake, [[update(key, 1, 3000 + key) for key in range(3)]], first=3)
    lake.table().create_checkpoint()
    last = committed(lake)[-1]
    before = {last.number: rows_at(lake, last.number)}
    assert len(stored(lake)) == 2
    with at(last.committed_ms + 1):
        publish(lake.driver("current", version_seconds=DAY), [update(7, 7, 7000)], 9)
    check_kept(lake, before, [last.number])


@pytest.mark.parametrize("format", FORMATS)
def test_a_log_keeps_all_its_rows(format: str, tmp_path: Path) -> None:
    lake = FORMATS[format](tmp_path)
    for number in range(2, 6):
        target = lake.driver("log", version_seconds=DAY)
        with at(_next_ms() if number == 5 else 0):
            assert commit(target, write(target, [logged(number, 0)], str(number)), number)
    found = lake.read(("after",), "op is not null").column("after").to_pylist()
    assert sorted(each["n"] for each in found) == [2, 3, 4, 5]
    assert len(committed(lake)) == (2 if isinstance(lake, IcebergLake) else 5)


# --- kills --------------------------------------------------------------------------------------------------------


@contextmanager
def killed_at(crash: CrashPoint) -> Iterator[None]:
    """While versions are forgotten, let each deletion and each commit of a catalogue be a point of death."""

    def guarded(function: Callable[..., Any]) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            return crash.request(lambda: function(*arguments, **options))

        return call

    def watched(function: Callable[..., Any]) -> Any:
        def call(*arguments: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                for owner, name in (
                    (FilesOfIo, "delete"),
                    (LocalFolder, "delete"),
                    (SqlCatalog, "commit_table"),
                ):
                    patch.setattr(owner, name, guarded(getattr(owner, name)))
                return function(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for target in (DeltaTarget, IcebergTarget):
            patch.setattr(target, "_forget_versions", watched(target._forget_versions))
        # One after another: a step is the same one in each run.
        patch.setattr(old_snapshots, "in_parallel", lambda call, items: list(map(call, items)))
        yield


@pytest.mark.parametrize("format", FORMATS)
def test_a_kill_at_any_step_leaves_the_later_versions_and_no_file_without_a_version(
    format: str, tmp_path: Path, campaign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    FORMATS[format](tmp_path / "any").low_limits(monkeypatch)
    crash, lake = CrashPoint(), FORMATS[format](tmp_path / "whole")
    writer, _, moment = aged(lake, "current", 0.8, count=36)
    with at(moment), killed_at(crash):
        forget(lake, "current", writer)
    steps = [(number, early) for number in range(crash.count) for early in (True, False)]
    killed = 0
    chosen = campaign.random("steps").sample(steps, min(campaign.size(4, 40), len(steps)))
    # When the first third is deleted, what is left must still be known.
    for number, early in dict.fromkeys([(crash.count // 3, False), *chosen]):
        lake = FORMATS[format](tmp_path / f"{number}-{early}")
        writer, place, moment = aged(lake, "current", 0.8, count=36)
        kept = [each.number for each in committed(lake)[place:]]
        before = {version: rows_at(lake, version) for version in kept}
        events = writer.changes(3, truncates=False)
        with at(moment):
            crash.start(number, early)
            with killed_at(crash):
                try:
                    publish(lake.driver("current", version_seconds=DAY), events, 90)
                except Crash:
                    killed += 1
            crash.restart()
            # The next start repeats the epoch, and publishes the next one.
            for epoch, some in ((90, events), (91, writer.changes(1, truncates=False))):
                publish(lake.driver("current", version_seconds=DAY), some, epoch)
        check_kept(lake, before, kept)
        assert lake.rows("id", "name", "amount") == [row[:3] for row in writer.current()]
    assert killed
