"""The index of the keys in data files: what it finds, what it takes, and when it is used."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.io.columnar import key_index
from penstock.io.columnar.key_index import KeyIndex, KeyPlaces, TableKeyIndex, sorted_hashes
from penstock.io.columnar.open_file import OpenFile
from tests.unit.tables.lakes import FORMATS, Lake, opened_files, published, update
from tests.unit.tables.test_delta import publish
from tests.unit.tables.test_snapshot_rows import rows

pytestmark = pytest.mark.slow


class _PlainFile(OpenFile):
    """A file whose columns have the names and types of the table."""

    def _own_names(self, shape: pa.Schema) -> Mapping[str, str]:
        return {name: name for name in shape.names}

    def _table_schema(self) -> pa.Schema:
        return self._file.schema_arrow

    def _fitted(self, rows: pa.Table) -> pa.Table:
        return rows


def file_of(keys: list[str], per_group: int = 4) -> OpenFile:
    table = pa.table(
        {
            "_penstock_key": pa.array(keys, pa.string()),
            "_penstock_version": [f"{number:03d}" for number in range(len(keys))],
        }
    )
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream, row_group_size=per_group)
    return _PlainFile("path", pa.BufferReader(stream.getvalue()))


def found_in(places: KeyPlaces, keys: list[str]) -> list[tuple[int, str]]:
    positions, texts = places.find(pa.array(keys, pa.string()), sorted_hashes(keys))
    return list(zip(positions.tolist(), texts.to_pylist(), strict=True))


_KEYS = st.text("abc", max_size=2)


@pytest.mark.parametrize("hashes", [1, 3, 1 << 30])
@settings(max_examples=40)
@given(st.lists(_KEYS, min_size=1, max_size=30), st.lists(_KEYS, unique=True))
def test_the_rows_with_some_keys_are_at_their_positions(
    hashes: int, stored: list[str], wanted: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Few hashes: several keys have the same one.
        patch.setattr(
            key_index, "hashes_of", lambda keys: np.array([hash(key) % hashes for key in keys], np.int64)
        )
        places = KeyPlaces.of(file_of(stored))
        expected = [(number, key) for number, key in enumerate(stored) if key in set(wanted)]
        assert found_in(places, wanted) == expected
        assert found_in(places.in_file(), wanted) == expected


def test_an_entry_in_a_file_holds_no_descriptor_and_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    places = KeyPlaces.of(file_of(["a", "b"]))
    before = len(os.listdir("/proc/self/fd"))
    mapped = places.in_file()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not list(tmp_path.iterdir())
    assert found_in(mapped, ["b"]) == [(1, "b")]


def test_the_bounds_of_versions_are_those_of_all_row_groups() -> None:
    places = KeyPlaces.of(file_of(list("abcdefghij")))
    assert places.bounds("_penstock_version") == ("000", "009")
    assert places.bounds("id") is None


def searched(index: TableKeyIndex, *paths: str, keys: int = 4) -> list[str]:
    """Search files with so many keys, and return which of them have an entry afterwards."""
    index.begin(paths)
    return [
        path
        for path in paths
        if index.entry(path) or index.made(path, file_of([str(key) for key in range(keys)]))
    ]


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "SMALL_ROWS", 0)


def test_a_small_file_gets_its_entry_at_once_and_a_large_one_when_it_is_searched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_index, "SMALL_ROWS", 4)
    index = KeyIndex(1 << 20).of_table("t")
    assert searched(index, "a") == ["a"]
    assert searched(index, "b", keys=5) == []
    assert searched(index, "b", keys=5) == ["b"]


@pytest.mark.usefixtures("all_large")
def test_what_is_known_of_a_file_is_forgotten_with_it() -> None:
    index = KeyIndex(1 << 20).of_table("t")
    assert searched(index, "a") == []
    assert searched(index, "a", "b") == ["a"]
    assert searched(index, "b") == ["b"]
    assert searched(index, "a") == []


@pytest.mark.usefixtures("all_large")
def test_a_search_adds_a_limited_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "MOST_ROWS", 10)
    index = KeyIndex(1 << 20).of_table("t")
    assert [len(searched(index, *"abcde")) for _ in range(4)] == [0, 2, 4, 5]
    assert [searched(index, "long", keys=11) for _ in range(3)] == [[], [], []]


def test_tables_share_the_bytes_and_files_that_are_gone_free_theirs() -> None:
    size = KeyPlaces.of(file_of(list("0123"))).size
    both = KeyIndex(2 * size)
    one, other = both.of_table("one"), both.of_table("other")
    assert searched(one, "a", "b") == ["a", "b"]
    assert searched(other, "c") == []
    searched(one, "b")
    searched(other, "d")
    assert searched(other, "c") == ["c"]


def test_a_full_folder_leaves_files_out_and_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_index, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    key_index._warn.cache_clear()
    one = KeyIndex(1 << 20)
    index = one.of_table("t")
    for _ in range(4):
        assert searched(index, "a") == []
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert "max_index_bytes=0" in caplog.text
    assert one.has(1 << 20)


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return FORMATS[request.param](tmp_path)


@pytest.mark.parametrize("mapped", [True, False])
def test_no_file_is_opened_for_keys_that_are_in_the_index(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    monkeypatch.setattr(key_index, "IN_MEMORY_BYTES", 0 if mapped else 1 << 20)
    published(lake, [rows(range(100, 200)), rows(range(300, 400))])
    driver, opened, counts = lake.driver(tombstone_seconds=10**6), opened_files(monkeypatch), []
    for number in range(4, 8):
        opened.clear()
        # Keys of both files of the snapshot, which no epoch has changed. The bounds of all files have them.
        publish(driver, [update(key + number % 3, number, 1000 * number) for key in (150, 350)], number)
        counts.append(len(opened))
    # Then only the file of the epoch before.
    assert counts == [2, 1, 1, 1]
    assert sorted(key for key, number in lake.rows() if number > 1) == [150, 151, 152, 350, 351, 352]


def test_without_an_index_each_epoch_opens_the_files(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lake, [rows(range(100, 200)), rows(range(300, 400))])
    driver, opened = lake.driver(max_index_bytes=0), opened_files(monkeypatch)
    for number in range(4, 8):
        opened.clear()
        publish(driver, [update(150 + number, number, 1000 * number)], number)
        assert opened


def test_rows_that_another_program_moves_are_found_again(lake: Lake) -> None:
    published(lake, [rows(range(4))])
    driver = lake.driver()
    publish(driver, [update(1, 2, 3000)], 3)
    lake.copy_row(2)
    publish(driver, [update(2, 3, 4000)], 4)
    publish(driver, [update(1, 4, 5000)], 5)
    assert lake.rows() == [(0, 0), (1, 4), (2, 3), (3, 0)]


def test_an_older_change_leaves_a_row_whose_key_is_in_the_index(lake: Lake) -> None:
    driver = lake.driver()
    publish(driver, [update(key, 5, 3000 + key) for key in range(4)], 2)
    for number, version in enumerate((2000, 3001, 2500), 3):
        publish(driver, [update(1, number, version), update(3, number, 5000 + number)], number)
        assert lake.rows() == [(0, 5), (1, 5), (2, 5), (3, number)]
