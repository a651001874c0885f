"""Side inputs of a batch that do not fit into memory: read from scratch files, with the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from apache_beam import coders
from apache_beam.coders.coders import IntervalWindowCoder
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.elements import ElementCoder
from penstock.runner.harness.side_inputs import WholeSideInput

INTS, WINDOWS = coders.VarIntCoder(), IntervalWindowCoder()
EARLY, LATE = IntervalWindow(0, 10), IntervalWindow(10, 20)
ALL = 10**9


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    return tmp_path


def filled(values: list[Any], memory_bytes: int, *, keyed: bool) -> WholeSideInput:
    coder = ElementCoder(coders.TupleCoder([INTS, INTS]) if keyed else INTS, WINDOWS)
    side = WholeSideInput(coder, keyed=keyed, memory_bytes=memory_bytes)
    for begin in range(0, len(values), 50):
        elements = [WindowedValue(value, 5, (EARLY, LATE)[: 1 + i % 2]) for i, value in enumerate(values)]
        side.add(b"".join(coder.get_impl().encode_nested(each) for each in elements[begin : begin + 50]))
    return side


@pytest.mark.parametrize("memory_bytes", [ALL, 10_000])
def test_an_iterable_comes_in_order_however_often_it_is_read(memory_bytes: int, scratch: Path) -> None:
    values = list(range(2_000))
    side = filled(values, memory_bytes, keyed=False)
    early, late = (
        [side.values(WINDOWS.encode(window), b"", INTS.get_impl()) for _ in range(2)]
        for window in (EARLY, LATE)
    )
    assert [list(each) for each in early] == [values] * 2
    assert [list(each) for each in late] == [values[1::2]] * 2
    assert list(scratch.iterdir()) == [], "scratch files have no name, so they end with the process"


@pytest.mark.parametrize("memory_bytes", [ALL, 10_000])
def test_the_values_of_each_key_are_found(memory_bytes: int, scratch: Path) -> None:
    side = filled([(n % 97, n) for n in range(2_000)], memory_bytes, keyed=True)
    window, impl = WINDOWS.encode(EARLY), INTS.get_impl()
    for key in range(97):
        assert list(side.values(window, impl.encode_nested(key), impl)) == list(range(key, 2_000, 97))
    assert list(side.values(window, impl.encode_nested(98), impl)) == []
    assert list(side.values(WINDOWS.encode(IntervalWindow(20, 30)), impl.encode_nested(1), impl)) == []
    assert sorted(side.keys(window, impl)) == list(range(97))
    assert list(scratch.iterdir()) == []
    assert (side._file is not None) == (memory_bytes != ALL)
