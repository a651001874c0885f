"""The DoFn's loop with a scripted service: claimed records are emitted, unclaimed ones are read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.errors import DecodeError
from penstock.io.bigtable.frontier import Advanced, Closed, Frontier, Step
from penstock.io.bigtable.keys import EVERYTHING, KeyRange
from penstock.io.bigtable.pool import Limits, StreamPool
from penstock.io.bigtable.read import ReadBigtableFn, ReadFromBigtableChangeStream
from penstock.io.bigtable.tracker import BigtableTracker
from penstock.io.change_streams.partition_stream import PartitionStream
from penstock.io.change_streams.tracker import Poll
from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark
from penstock.pace import Pace, reading_at

LOW, HIGH = KeyRange(b"", b"m"), KeyRange(b"m", b"")
LIMITS = Limits(
    unavailable_seconds=5.0,
    max_concurrent_partitions=8,
    buffer_bytes=1 << 20,
    idle_stream_seconds=5.0,
    merge_wait_seconds=0.05,
    heartbeat_seconds=1.0,
)


class Cutting:
    """A tracker that is cut, as a runner does it, after a claim: when `cut` says so of the steps claimed."""

    def __init__(self, frontier: Frontier, cut: Callable[[list[Step]], bool]) -> None:
        self.steps: list[Step] = []
        self.residual = frontier
        self._tracker = BigtableTracker(frontier)
        self._cut = cut

    def current_restriction(self) -> Frontier:
        return self._tracker.current_restriction()

    def try_claim(self, step: Any) -> bool:
        if not self._tracker.try_claim(step):
            return False
        if type(step) is not Poll:
            self.steps.append(step)
            if self._cut(self.steps):
                self.defer_remainder(None)
        return True

    def defer_remainder(self, delay: Any) -> None:
        split = self._tracker.try_split(0)
        self.residual = split[1] if split else self.residual.exhausted()


@pytest.fixture
def pool(source: Any) -> Iterator[StreamPool]:
    made = StreamPool(source, LIMITS, None, True)
    yield made
    made.clear()


@pytest.fixture
def fn(pool: StreamPool) -> ReadBigtableFn:
    transform = ReadFromBigtableChangeStream(project="p", instance="i", table="t")
    made = ReadBigtableFn(transform._settings)  # its pool is replaced
    made._pool = lambda element: pool  # type: ignore[method-assign]
    return made


def process(fn: ReadBigtableFn, tracker: Cutting) -> Iterator[Any]:
    low = FrontierWatermarkEstimator(beam_watermark(tracker.residual.watermark))
    return fn.process(None, tracker, low)  # type: ignore[arg-type]


@pytest.mark.parametrize("claims", [1, 2, 5])
def test_each_record_is_emitted_once_in_order_after_any_number_of_splits(
    source: Any, say: Any, fn: Any, claims: int
) -> None:
    tokens = [str(number) for number in range(7 * PartitionStream.max_in_claim + 3)]
    source.will_say(EVERYTHING, *[say.change(token) for token in tokens])
    frontier = Frontier.starting_at(0, [EVERYTHING])
    emitted: list[str] = []
    while len(emitted) < len(tokens):
        tracker = Cutting(frontier, lambda steps: len(steps) == claims or steps[-1].token == tokens[-1])
        emitted += [output.value.token for output in process(fn, tracker)]
        frontier = tracker.residual
        assert [segment.token for segment in frontier.segments] == emitted[-1:]
    assert emitted == tokens
    assert len(source.opened) == 1


def test_the_runner_learns_of_a_claim_before_the_steps_behind_have_its_records(
    source: Any, say: Any, fn: Any
) -> None:
    source.will_say(EVERYTHING, say.change("one"))
    tracker = Cutting(Frontier.starting_at(0, [EVERYTHING]), lambda steps: False)
    pace = Pace(0.0)
    with reading_at(pace):
        next(process(fn, tracker))
    assert pace.claimed == 1


def test_one_claim_covers_few_records_so_that_a_split_takes_effect_soon(
    source: Any, say: Any, pool: Any, fn: Any
) -> None:
    source.will_say(
        EVERYTHING, *[say.change(str(number)) for number in range(10 * PartitionStream.max_in_claim)]
    )
    tracker = Cutting(Frontier.starting_at(0, [EVERYTHING]), lambda steps: True)
    outputs = process(fn, tracker)
    assert 0 < sum(1 for _ in outputs) <= 32


def test_a_close_is_claimed_separately_after_the_records_before_it(source: Any, say: Any, fn: Any) -> None:
    source.will_say(
        EVERYTHING, say.change("a"), say.change("b", low=2), say.close(11, (LOW, "l", LOW), (HIGH, "h", HIGH))
    )
    tracker = Cutting(Frontier.starting_at(0, [EVERYTHING]), lambda steps: type(steps[-1]) is Closed)
    assert [output.value.token for output in process(fn, tracker)] == ["a", "b"]
    assert tracker.steps[-2] == Advanced(EVERYTHING, "b", 2_000_000_000)
    assert [(segment.token, segment.watermark) for segment in tracker.residual.segments] == [
        ("l", 2_000_000_000),
        ("h", 2_000_000_000),
    ]


def test_records_outside_the_row_range_are_claimed_and_not_emitted(source: Any, say: Any, fn: Any) -> None:
    source.will_say(
        EVERYTHING, say.change("a", row=b"x"), say.change("b", row=b"b"), say.change("c", row=b"y")
    )
    tracker = Cutting(Frontier.starting_at(0, [EVERYTHING], LOW), lambda steps: steps[-1].token == "c")
    assert [output.value.token for output in process(fn, tracker)] == ["b"]
    assert tracker.residual.segments[0].token == "c"


def damaged(message: Any) -> Any:
    """Return the message with an entry that a change stream never sends."""
    message.data_change.chunks[0].Clear()
    message.data_change.chunks[0].mutation.delete_from_row.SetInParent()
    return message


def test_a_record_that_cannot_be_decoded_fails_the_read_after_the_records_before_it(
    source: Any, say: Any, fn: Any
) -> None:
    source.will_say(EVERYTHING, say.change("a"), damaged(say.change("b")), say.change("c"))
    outputs = process(fn, Cutting(Frontier.starting_at(0, [EVERYTHING]), lambda steps: False))
    assert next(outputs).value.token == "a"
    with pytest.raises(DecodeError, match=r"b/0 cannot be decoded.*delete_from_row.*with_exception_handling"):
        next(outputs)


def test_with_an_error_output_it_is_claimed_and_emitted_there_and_the_read_continues(
    source: Any, say: Any, pool: Any
) -> None:
    transform = ReadFromBigtableChangeStream(project="p", instance="i", table="t").with_exception_handling()
    fn = ReadBigtableFn(transform._settings)
    fn._pool = lambda element: pool  # type: ignore[method-assign]
    bad, outside = damaged(say.change("b", seconds=7)), damaged(say.change("d", row=b"x"))
    source.will_say(EVERYTHING, say.change("a"), bad, outside, say.change("c"))
    tracker = Cutting(
        Frontier.starting_at(0, [EVERYTHING], KeyRange(b"", b"s")), lambda steps: steps[-1].token == "c"
    )
    first, undecodable, last = process(fn, tracker)
    assert [first.value.token, last.value.token] == ["a", "c"]
    record = undecodable.value.value
    assert (undecodable.tag, record.commit_timestamp, record.position) == (
        "undecodable",
        7_000_000_000,
        "b/0",
    )
    assert bad.data_change.SerializeToString() in record.data
    assert tracker.residual.segments[0].token == "c"
