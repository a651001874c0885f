"""Groups, side inputs and state use little memory, whatever their size. Measured with `tracemalloc`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam import coders
from apache_beam.transforms.window import GlobalWindows

from penstock.runner.harness.elements import ElementCoder
from penstock.runner.harness.side_inputs import WholeSideInput
from penstock.runner.protocol import RunName
from penstock.runner.store import LocalFileSystem, StateStore, state
from penstock.runner.store.runs import RunCache
from penstock.runner.windows import grouping

VALUES, SIZE = 12_000, 1_000
LIMIT = 1 << 20
PEAK = 5 << 20
"""The values have 12 MB, and each part may hold a megabyte, a second one while it writes, and parts of files."""


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(grouping, "_PART_BYTES", LIMIT // 16)
    return tmp_path


def peak(work: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def values() -> Iterator[bytes]:
    return (n.to_bytes(4, "big") * (SIZE // 4) for n in range(VALUES))


def test_a_group_of_any_size_is_read_twice_in_little_memory() -> None:
    def work() -> None:
        collected = grouping.Grouping(LIMIT)
        for value in values():
            collected.add(b"key", b"window", 0, 0, value)
        (group,) = collected.groups()
        assert [sum(map(len, group.chunks)) for _ in range(2)] == [VALUES * SIZE] * 2
        collected.close()

    assert peak(work) < PEAK


@pytest.mark.slow
def test_a_side_input_of_any_size_is_read_in_little_memory() -> None:
    element = coders.BytesCoder()
    coder = ElementCoder(element, coders.coders.GlobalWindowCoder())

    def work() -> None:
        side = WholeSideInput(coder, keyed=False, memory_bytes=LIMIT)
        for value in values():
            side.add(coder.get_impl().encode_nested(GlobalWindows.windowed_value(value)))
        assert sum(len(value) for value in side.values(b"", b"", element.get_impl())) == VALUES * SIZE

    assert peak(work) < PEAK


@pytest.mark.slow
def test_state_of_any_size_is_sealed_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "SPILL_BYTES", LIMIT)
    monkeypatch.setattr(state, "LARGE_BYTES", LIMIT)

    def work() -> None:
        store = StateStore.open(LocalFileSystem(), str(tmp_path / "state"), (), 0, 7, cache=RunCache())
        for number, value in enumerate(values()):
            store.put(number % 8, b"%08d" % number, value)
        (run,) = store.seal(RunName(1, 1, "aa", "Count"))
        assert run.entries == VALUES

    assert peak(work) < PEAK
