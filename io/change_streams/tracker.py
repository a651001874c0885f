"""Claims and cuts of a reading whose restriction is a frontier, and the watermark that goes with it.

The tracker claims steps of a frontier; a checkpoint is the frontier after the last claimed step. Claims of
records and heartbeats are many, so they are collected and folded into the frontier only when somebody asks
for it; steps of lineage are few and applied at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from apache_beam import coders
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker, WatermarkEstimator
from apache_beam.transforms.core import WatermarkEstimatorProvider
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp


class Frontier(Protocol):
    """What a reading has left to read, as far as claims and cuts need to know."""

    @property
    def done(self) -> bool: ...
    @property
    def end(self) -> int | None: ...
    @property
    def watermark(self) -> int | None: ...
    @property
    def readable(self) -> Collection[Any]:
        """The partitions that may be read now."""

    @property
    def summary(self) -> str:
        """What is left, in words, without keys or tokens."""

    def advanced(self, positions: Mapping[Any, Any]) -> Self:
        """The frontier with several partitions at new positions."""

    def apply(self, step: Any) -> Self:
        """The frontier after one step of lineage."""

    def exhausted(self) -> Self:
        """The same reading with nothing left."""

    def deal(self, n: int) -> list[Self]:
        """At most `n` frontiers that can be read side by side."""


Whole = TypeVar("Whole", bound=Frontier)


@dataclass(frozen=True, slots=True)
class Poll:
    """What an idle reader claims to learn whether it has been cut; it moves nothing.

    `data_expected`: the reader lies behind and the service is at work for it, so something will come soon.
    `first_record_pending`: that is so of the partition that lies lowest, of which nothing has been claimed yet.
    """

    data_expected: bool = False
    first_record_pending: bool = False


class FrontierTracker(RestrictionTracker):  # type: ignore[misc, unused-ignore]
    """Claims the steps of one `process` call. Beam calls it under a lock, from the reader and the runner.

    A split is put off (None: ask again) until the reader has claimed one step, or has said by a tick that
    none is to be expected; and while the lowest partition is owing, whatever others have claimed. Otherwise a
    runner that cuts sooner than the service needs to send the first message would throw away the same work for
    ever.
    """

    def __init__(self, frontier: Any) -> None:
        self._frontier = frontier
        self._readable = frontier.readable
        self._advanced: dict[Hashable, Any] = {}
        self._data_expected = True
        self._first_record_pending = False
        self._moved = False
        self._cut = False

    def moved_to(self, step: Any) -> tuple[Hashable, Any] | None:
        """Return the partition and position that a step advances, or None for a step of lineage.

        Raises:
            LineageError: the partition may not be read now (`self._readable`).
        """
        raise NotImplementedError

    def current_restriction(self) -> Any:
        """Return the frontier after the last claim; after a split, the (finished) primary."""
        if self._advanced:
            self._frontier = self._frontier.advanced(self._advanced)
            self._readable = self._frontier.readable
            self._advanced = {}
        return self._frontier

    def try_claim(self, position: Any) -> bool:
        """Claim one step, or a tick. False: the reader was cut and must return without emitting.

        Raises:
            LineageError: the step does not fit the frontier.
        """
        if self._cut:
            return False
        if type(position) is Poll:
            self._data_expected, self._first_record_pending = (
                position.data_expected,
                position.first_record_pending,
            )
            return True
        moved = self.moved_to(position)
        if moved is None:
            self._frontier = self.current_restriction().apply(position)
            self._readable = self._frontier.readable
        else:
            self._advanced[moved[0]] = moved[1]
        self._moved = True
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Any, Any] | None:
        """Cut: the primary is what was claimed, the residual all the rest.

        Only a fraction of 0 is granted. A frontier is dealt over workers between bundles, when all its
        parts are at rest (`rebalance`); torn apart while it is read, a merge could lose one of its parents.
        """
        if fraction_of_remainder != 0 or self._cut:
            return None
        residual = self.current_restriction()
        awaited = self._first_record_pending or (self._data_expected and not self._moved)
        if residual.done or (awaited and residual.readable):
            return None
        self._frontier, self._cut = residual.exhausted(), True
        return self._frontier, residual

    def check_done(self) -> bool:
        frontier = self.current_restriction()
        if not frontier.done:
            raise ValueError(f"the reader returned with {frontier.summary}, without deferring the rest")
        return True

    def current_progress(self) -> RestrictionProgress:
        """Return one half while anything is left: Beam does not split what reports to be complete."""
        return RestrictionProgress(fraction=1.0 if self.current_restriction().done else 0.5)

    def is_bounded(self) -> bool:
        return self._frontier.end is not None


def rebalanced(
    join: Callable[[Sequence[Whole]], Whole], residuals: Sequence[tuple[Whole, Timestamp]], n: int
) -> list[tuple[Whole, Timestamp]]:
    """Join all residuals of one element and deal them out over `n` slots.

    For runners, between bundles, with every residual of the element. Returns at most `n` parts with the
    states of their watermark estimators; the lowest equals that of the whole, which never goes back.
    Nothing is returned when nothing is left to read.
    """
    if not residuals:
        return []
    whole = join([frontier for frontier, _ in residuals])
    return [(part, beam_watermark(part.watermark)) for part in whole.deal(n)]


def beam_watermark(watermark: int | None) -> Timestamp:
    """Return a frontier's watermark for Beam, rounded down to milliseconds; None as the end of time.

    Whole milliseconds, because Beam's coders cut the timestamps of elements down to them between stages: an
    element must not fall behind the watermark on its way.
    """
    return MAX_TIMESTAMP if watermark is None else Timestamp(micros=watermark // 1_000_000 * 1000)


class FrontierWatermarkEstimator(WatermarkEstimator):  # type: ignore[misc, unused-ignore]
    """Reports what the reader sets from its frontier, never less than before."""

    def __init__(self, watermark: Timestamp) -> None:
        self._watermark = watermark

    def observe_timestamp(self, timestamp: Timestamp) -> None:
        """Ignored: the newest record of one partition says nothing about the others."""

    def current_watermark(self) -> Timestamp:
        return self._watermark

    def get_estimator_state(self) -> Timestamp:
        return self._watermark

    def set_watermark(self, timestamp: Timestamp) -> None:
        """Raise the watermark to `timestamp`; one that lies lower changes nothing."""
        if timestamp > self._watermark:
            self._watermark = timestamp


class FrontierWatermarkEstimatorProvider(WatermarkEstimatorProvider):  # type: ignore[misc, unused-ignore]
    """The estimator's state is its watermark, a Beam Timestamp."""

    def initial_estimator_state(self, element: Any, restriction: Any) -> Timestamp:
        return beam_watermark(restriction.watermark)

    def create_watermark_estimator(self, estimator_state: Timestamp) -> FrontierWatermarkEstimator:
        return FrontierWatermarkEstimator(estimator_state)

    def estimator_state_coder(self) -> coders.Coder:
        return coders.TimestampCoder()
