"""What the reader's thread takes at once from a connection."""

from __future__ import annotations

import itertools

import pytest

from penstock.io.postgres.connection import StreamedLog, _until_pause

MIB = 1 << 20


@pytest.mark.parametrize(("size", "taken"), [(100, 256), (MIB // 4, 4), (100 * MIB, 1)])
def test_no_more_is_taken_after_a_megabyte(size: int, taken: int) -> None:
    items = (("step", size) for _ in itertools.count())
    assert len(_until_pause(items, 256)) == taken  # type: ignore[arg-type]


def test_what_arrived_before_a_pause_is_returned_at_once() -> None:
    items = iter([("a", 1), ("b", 1), None, ("c", 1)])
    assert [item for item, _ in _until_pause(items, 256)] == ["a", "b"]  # type: ignore[arg-type]


def test_a_connection_is_asked_for_a_megabyte_at_most() -> None:
    asked = []

    class Stream:
        def receive(self, timeout: float, most: int, most_bytes: int) -> list[tuple[int, bytes]]:
            asked.append(most_bytes)
            return []

        def send_status(self, *, ask: bool = False) -> None: ...

    class Client:
        def now(self) -> None: ...

    StreamedLog(Client(), Stream(), None, 1).read(256)  # type: ignore[arg-type]
    assert asked == [MIB]
