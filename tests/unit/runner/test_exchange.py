"""The blocks of pairs that a worker sends to Spark's JVM."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.runner.protocol.frames import FRAME_BYTES
from penstock.runner.spark.exchange import blocks_of


def test_blocks_keep_the_order_of_each_target_and_lose_nothing() -> None:
    pairs = [(number % 3, bytes(number * 1000)) for number in range(100)]
    found: dict[int, list[tuple[int, bytes]]] = {0: [], 1: [], 2: []}
    for target, block in blocks_of(pairs):
        found[target] += block
    assert found == {target: [pair for pair in pairs if pair[0] == target] for target in range(3)}


def test_a_worker_holds_a_megabyte_of_pairs_however_many_targets_there_are() -> None:
    taken = sent = most = 0

    def pairs() -> Iterator[tuple[int, bytes]]:
        nonlocal taken
        for number in range(400):
            taken += 50_000
            yield number % 200, bytes(50_000)

    for _, block in blocks_of(pairs()):
        most = max(most, taken - sent)
        sent += sum(len(frame) for _, frame in block)
    assert sent == taken == 400 * 50_000
    assert most <= FRAME_BYTES + 50_000


def test_small_frames_travel_together() -> None:
    assert list(blocks_of([(0, b"a"), (1, b"b"), (0, b"c")])) == [
        (0, [(0, b"a"), (0, b"c")]),
        (1, [(1, b"b")]),
    ]
