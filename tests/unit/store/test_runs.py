"""State runs: a read returns the written entries or raises an error."""

from __future__ import annotations

import gc
import os
import zlib
from dataclasses import replace

import pytest

from penstock.runner.protocol import CheckpointError, RunMissingError, RunName, StateRun
from penstock.runner.store import LocalFileSystem, runs
from penstock.runner.store.runs import (
    ABSENT,
    RunBuilder,
    RunCache,
    key_of,
    open_run,
    run_key,
    shared_cache,
    successor,
)

FILES = LocalFileSystem()


def written(tmp_path, entries, name="run"):
    """Build a run of the entries, write it, and return path and how a record names it."""
    builder = RunBuilder()
    builder.add(entries)
    data, _ = builder.finish()
    path = f"{tmp_path}/{name}"
    FILES.write(path, data)
    return path, StateRun("Count", name, 0, 127, len(entries), len(data), zlib.crc32(data))


def test_run_keys_sort_by_key_group_then_key():
    keys = [
        (0, b""),
        (0, b"\xff\xff"),
        (1, b""),
        (1, b"a"),
        (1, b"a\x00"),
        (255, b"z"),
        (256, b""),
        (32767, b"\xff"),
    ]
    assert sorted(run_key(*key) for key in keys) == [run_key(*key) for key in keys]
    assert [key_of(run_key(*key)) for key in keys] == keys


def test_the_successor_of_a_prefix_is_above_all_keys_with_the_prefix():
    assert successor(b"\x00\x01") == b"\x00\x02"
    assert successor(b"\x00\x01\xff\xff") == b"\x00\x02"


@pytest.mark.parametrize("limit", [0, runs.IN_MEMORY_BYTES])
def test_a_run_reads_the_same_in_memory_and_in_place(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(runs, "IN_MEMORY_BYTES", limit)
    path, meta = written(
        tmp_path / "a folder?#%", [(b"\x00\x01a", b"1"), (b"\x00\x01b", None), (b"\x00\x02a", b"")]
    )
    run = open_run(FILES, path, meta)
    assert (run.get(b"\x00\x01a"), run.get(b"\x00\x01b"), run.get(b"\x00\x02a")) == (b"1", None, b"")
    assert run.get(b"\x00\x01") is ABSENT
    assert list(run.scan([(b"\x00\x01b", b"\x00\x03")])) == [(b"\x00\x01b", None), (b"\x00\x02a", b"")]
    assert (run.held_bytes == 0) == (limit == 0)
    assert run.key_groups == {1, 2}


@pytest.mark.parametrize("limit", [0, runs.IN_MEMORY_BYTES])
@pytest.mark.parametrize("offset", [0, 4096, -1])
def test_a_changed_byte_is_noticed(tmp_path, monkeypatch, limit, offset):
    monkeypatch.setattr(runs, "IN_MEMORY_BYTES", limit)
    path, meta = written(tmp_path, [(b"\x00\x00key", b"value")])
    data = bytearray(FILES.read(path))
    data[offset] ^= 1
    os.unlink(path)
    FILES.write(path, bytes(data))
    with pytest.raises(CheckpointError, match=r"of 'Count' is damaged: .* Restore the checkpoint folder"):
        open_run(FILES, path, meta)


@pytest.mark.parametrize("limit", [0, runs.IN_MEMORY_BYTES])
def test_the_error_of_a_missing_run_names_the_fix(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(runs, "IN_MEMORY_BYTES", limit)
    path, meta = written(tmp_path, [(b"\x00\x00key", b"value")])
    os.unlink(path)
    with pytest.raises(RunMissingError, match=r"of 'Count' is missing. If another driver has taken over"):
        open_run(FILES, path, meta)


def test_a_cached_run_is_opened_once_and_survives_its_file(tmp_path):
    cache = RunCache()
    path, meta = written(tmp_path, [(b"\x00\x00key", b"value")])
    first = cache.open(FILES, path, meta)
    os.unlink(path)
    assert cache.open(LocalFileSystem(), path, meta) is first


def test_the_cache_drops_the_least_recently_used_beyond_its_limits(tmp_path):
    paths = [written(tmp_path, [(b"\x00\x00key", b"value")], name) for name in "abc"]
    size = paths[0][1].size
    for cache in (RunCache(limit_runs=2), RunCache(limit_bytes=2 * size)):
        opened = [cache.open(FILES, *paths[0]), cache.open(FILES, *paths[1])]
        assert cache.open(FILES, *paths[0]) is opened[0]
        cache.open(FILES, *paths[2])
        assert cache.open(FILES, *paths[0]) is opened[0]
        assert cache.open(FILES, *paths[1]) is not opened[1]
        assert opened[1].get(b"\x00\x00key") == b"value"


def test_large_runs_together_are_mapped_into_memory_up_to_one_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "IN_MEMORY_BYTES", 0)
    paths = [written(tmp_path, [(b"\x00\x00key", b"value")], name) for name in "abc"]
    size = paths[0][1].size
    cache = RunCache(limit_runs=2, limit_mapped_bytes=size + size // 2)
    mapped = [cache.open(FILES, *path).mapped_bytes for path in paths]
    assert mapped == [size, size // 2, 0]
    assert cache.open(FILES, *paths[0]).mapped_bytes == size, (
        "the first was dropped, so its part is free again"
    )


def test_a_run_larger_than_the_cache_is_still_kept_while_it_is_the_newest(tmp_path):
    cache = RunCache(limit_bytes=1)
    path, meta = written(tmp_path, [(b"\x00\x00key", b"value")])
    assert cache.open(FILES, path, meta) is cache.open(FILES, path, meta)


def test_the_cache_forgets_older_runs_that_no_record_names(tmp_path):
    cache = RunCache()
    names = [
        RunName(1, epoch, nonce, "Count").file_name(0, 7)
        for epoch, nonce in ((4, "aa"), (4, "bb"), (5, "aa"))
    ]
    paths = [written(tmp_path, [(b"\x00\x00key", b"value")], name) for name in names]
    opened = [cache.open(FILES, *path) for path in paths]
    cache.forget_dead(str(tmp_path / "elsewhere"), (), (9, 9))
    cache.forget_dead(str(tmp_path), {names[0]}, (1, 5))
    same = [cache.open(FILES, *path) is before for path, before in zip(paths, opened, strict=True)]
    assert same == [True, False, True], "named, dead, and as young as the epoch itself"


def test_a_forked_child_begins_with_an_empty_cache(tmp_path):
    path, meta = written(tmp_path, [(b"\x00\x00key", b"value")])
    shared_cache().open(FILES, path, meta)
    gone = replace(meta, checksum=0)
    child = os.fork()
    if not child:
        try:
            shared_cache().open(FILES, path, gone)
        except CheckpointError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_run_closes_its_database_when_it_is_no_longer_used(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "IN_MEMORY_BYTES", 0)
    path, meta = written(tmp_path, [(b"\x00\x00key", b"value")])
    run = open_run(FILES, path, meta)
    run.get(b"\x00\x00key")
    assert _descriptors(path)
    del run
    gc.collect()
    assert not _descriptors(path)


def _descriptors(path: str) -> list[str]:
    """This process's open descriptors of a file."""
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return [link for link in links if os.path.exists(link) and os.path.realpath(link) == path]
