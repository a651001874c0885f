"""What the reader's thread takes at once from a connection."""

from __future__ import annotations

import itertools
import time

import pytest

from penstock.io.postgres.client import Now
from penstock.io.postgres.connection import ServerClock, StreamedCall, _some, _until_pause
from penstock.io.postgres.log_decoder import LogDecoder
from penstock.io.postgres.transactions import TransactionReader

MIB = 1 << 20


@pytest.mark.parametrize(("size", "taken"), [(100, 256), (MIB // 4, 4), (100 * MIB, 1)])
def test_no_more_is_taken_after_a_megabyte(size: int, taken: int) -> None:
    items = (("step", size) for _ in itertools.count())
    assert len(_until_pause(items, 256)) == taken  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "taken"), [(100, 512), (MIB // 4, 4), (100 * MIB, 1)])
def test_a_pull_takes_no_more_after_a_megabyte(size: int, taken: int) -> None:
    payload = bytes(size)
    assert len(_some((1, payload) for _ in itertools.count())) == taken


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
        def now(self) -> Now:
            return Now(0, 0)

    decoder = LogDecoder(TransactionReader(lambda *_: None, 0, 0))  # type: ignore[arg-type, return-value]
    StreamedCall(Client(), Stream(), decoder, 1).read(256)  # type: ignore[arg-type]
    assert asked == [MIB]


def test_the_time_of_the_server_goes_on_from_the_time_that_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    clock = ServerClock()
    clock.heard(5_000_000)
    now[0] += 300
    assert clock.time() == 5_000_300
