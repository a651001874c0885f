"""The restriction tracker of a reader whose restriction is a frontier.

A reader claims steps. A checkpoint is the frontier after the last claimed step. Claims of records and heartbeats are
frequent, so the tracker collects them and applies them only when the frontier is needed. Steps of lineage are rare, so
they are applied at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.utils.timestamp import Timestamp

from penstock.io.change_streams.watermark import beam_watermark


@dataclass(frozen=True, slots=True)
class Poll:
    """A claim that advances nothing. An idle reader makes it to learn whether it was split.

    `data_expected`: a partition is behind and the service is working on it, so data will come soon.
    `first_record_pending`: this is so for a partition that would make no progress if the reader were split now.
    """

    data_expected: bool = False
    first_record_pending: bool = False


class FrontierTracker(RestrictionTracker):
    """Claims the steps of one `process` call. Beam calls it under a lock, from the reader and from the runner.

    A split is deferred (`try_split` returns None, and the runner asks again):

    - until the reader has claimed a step that changes the frontier, or has declared by a `Poll` that it expects none;
    - while the first record of the lowest partition is pending.

    Otherwise a runner that splits before the service sends its first message would discard the same work every time,
    and the reader would never advance.
    """

    def __init__(self, frontier: Any) -> None:
        self._frontier = frontier
        # Cached, because each claim needs it and the frontier computes it.
        self._readable = frontier.readable
        self._advanced: dict[Hashable, Any] = {}
        # Pessimistic until the first `Poll`: a bundle that is split at once would make no progress.
        self._data_expected = True
        self._first_record_pending = False
        self._moved = False
        self._cut = False

    def moved_to(self, step: Any) -> tuple[Hashable, Any] | None:
        """Return the partition that a step advances and its new position, or None for a step of lineage.

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
        """Claim one step or a `Poll`. False: the reader was split and must return without emitting.

        Raises:
            LineageError: the step does not fit the frontier.
        """
        if self._cut:
            return False
        # `type(...) is` and not `isinstance`: this runs for each claim.
        if type(position) is Poll:
            self._data_expected, self._first_record_pending = (
                position.data_expected,
                position.first_record_pending,
            )
            return True
        # Raises before anything is changed, so a step that does not fit leaves the frontier as it was.
        moved = self.moved_to(position)
        if moved is None:
            before = self.current_restriction()
            self._frontier = before.apply(position)
            self._readable = self._frontier.readable
            # An announcement does not change the position of its partition, so a bundle that follows a split reads it
            # again. If that counted as progress, a runner that splits after each step would never get past it.
            self._moved = self._moved or self._frontier != before
        else:
            # Collected and applied later: a frontier is an immutable value, and one copy per record would make the cost
            # quadratic.
            self._advanced[moved[0]] = moved[1]
            self._moved = True
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Any, Any] | None:
        """Split: the primary is the claimed work, the residual is all remaining work.

        Only a fraction of 0 is granted. A runner deals a frontier over its workers between bundles (`rebalance`),
        when all parts are at rest. A split of the key space during a read could separate the parents of a merge.
        """
        if fraction_of_remainder != 0 or self._cut:
            return None
        # Collected claims belong to the primary, because their records are emitted.
        residual = self.current_restriction()
        awaited = self._first_record_pending or (self._data_expected and not self._moved)
        # A part that has lost its position reads nothing more, although its last poll may have expected a record. Then
        # `process` defers the rest, and Beam does that with a split.
        if residual.done or (awaited and residual.readable and residual.can_progress):
            return None
        # Beam asks `check_done` of the primary after `process` has returned, so it must have no work left.
        self._frontier, self._cut = residual.exhausted(), True
        return self._frontier, residual

    def check_done(self) -> bool:
        """Return True if no work remains.

        Raises:
            ValueError: `process` returned too early. Beam expects this class.
        """
        frontier = self.current_restriction()
        if not frontier.done:
            raise ValueError(f"the reader returned with {frontier.summary}, without deferring the rest")
        return True

    def current_progress(self) -> RestrictionProgress:
        """Return one half while work remains, because Beam does not split a restriction that reports 1.0."""
        return RestrictionProgress(fraction=1.0 if self.current_restriction().done else 0.5)

    def is_bounded(self) -> bool:
        return self._frontier.end is not None


def rebalanced(
    frontier_type: Any,
    residuals: Sequence[tuple[Any, Timestamp]],
    n: int,
    prepared: Callable[[Any], Any] = lambda whole: whole,
) -> list[tuple[Any, Timestamp]]:
    """Join all residuals of one element and deal them out over `n` slots.

    For runners, between bundles, with every residual of the element. Returns at most `n` parts with the states of
    their watermark estimators; the lowest state equals the state of the whole frontier, which never goes back. Returns
    an empty list if no work remains. `prepared` may replace the whole frontier before it is dealt.
    """
    if not residuals:
        return []
    whole = prepared(frontier_type.join([frontier for frontier, _ in residuals]))
    return [(part, beam_watermark(part.watermark)) for part in whole.deal(n)]
