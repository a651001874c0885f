"""The restriction of the reader: a Frontier, with its coder, its tracker and its watermark estimator.

The tracker claims steps of a frontier; a checkpoint is the frontier after the last claimed step. Claims of
data records and heartbeats are many, so they are collected and folded into the frontier only when somebody
asks for it; steps of lineage are few and applied at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from apache_beam import coders
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker, WatermarkEstimator
from apache_beam.transforms.core import WatermarkEstimatorProvider
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from penstock.io.spanner.frontier import Advanced, Frontier, LineageError, Position, Step, Waiting, shown

VERSION = 1


@dataclass(frozen=True, slots=True)
class Tick:
    """What an idle reader claims to learn whether it has been cut; it moves nothing.

    `expecting`: the reader lies behind and the service is at work for it, so something will come soon.
    """

    expecting: bool = False


class FrontierCoder(coders.Coder):  # type: ignore[misc, unused-ignore]
    """Encodes a Frontier as compact JSON: ``{"v":1, "end", "dealt", "in_step", "open":[…], "waiting":[…]}``.

    An open partition is ``[token, timestamp, {transaction: [[first, last], …]}]``, a waiting one
    ``[token, start, [unfinished parents]]``; both are sorted by token, so equal frontiers have equal bytes.
    """

    def encode(self, value: Frontier) -> bytes:
        document = {
            "v": VERSION,
            "end": value.end,
            "dealt": value.dealt,
            "in_step": value.in_step,
            "open": [[token, at.timestamp, dict(at.seen)] for token, at in sorted(value.open.items())],
            "waiting": [
                [token, child.start, sorted(child.unfinished)]
                for token, child in sorted(value.waiting.items())
            ],
        }
        return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()

    def decode(self, encoded: bytes) -> Frontier:
        """Return the frontier.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
        """
        document = json.loads(encoded)
        if document.get("v") != VERSION:
            raise ValueError(
                f"a frontier of format version {document.get('v')} cannot be read here: this release knows "
                f"version {VERSION}; resume the checkpoint with the release that wrote it"
            )
        return Frontier(
            {token: Position(timestamp, _seen(seen)) for token, timestamp, seen in document["open"]},
            {token: Waiting(start, frozenset(parents)) for token, start, parents in document["waiting"]},
            document["end"],
            document["dealt"],
            document["in_step"],
        )

    def is_deterministic(self) -> bool:
        return True

    def to_type_hint(self) -> type[Frontier]:
        return Frontier

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


def _seen(document: dict[str, list[list[int]]]) -> dict[str, tuple[tuple[int, int], ...]]:
    return {
        transaction: tuple([(first, last) for first, last in runs]) for transaction, runs in document.items()
    }


class FrontierTracker(RestrictionTracker):  # type: ignore[misc, unused-ignore]
    """Claims the steps of one `process` call. Beam calls it under a lock, from the reader and the runner.

    A split is put off (None: ask again) until the reader has claimed one step, or has said by a tick that
    none is to be expected. Otherwise a runner that cuts sooner than the service needs to send the first row
    of a long query would throw away the same work for ever.
    """

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier.settled()
        self._advanced: dict[str, Position] = {}
        self._expecting = True
        self._moved = False
        self._cut = False

    def current_restriction(self) -> Frontier:
        """Return the frontier after the last claim; after a split, the (finished) primary."""
        if self._advanced:
            self._frontier = self._frontier.advanced(self._advanced)
            self._advanced = {}
        return self._frontier

    def try_claim(self, position: Step | Tick) -> bool:
        """Claim one step, or a tick. False: the reader was cut and must return without emitting.

        Raises:
            LineageError: the step does not fit the frontier.
        """
        if self._cut:
            return False
        if isinstance(position, Tick):
            self._expecting = position.expecting
            return True
        self._moved = True
        if type(position) is Advanced:
            if position.token not in self._frontier.open:
                raise LineageError(f"a record of a partition that is not open: {shown(position.token)}")
            self._advanced[position.token] = position.position
        else:
            self._frontier = self.current_restriction().apply(position)
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Frontier, Frontier] | None:
        """Cut: the primary is what was claimed, the residual all the rest.

        Only a fraction of 0 is granted. A frontier is dealt over workers between bundles, when all its
        parts are at rest (`rebalance`); torn apart while it is read, a merge could lose one of its parents.
        """
        if fraction_of_remainder != 0 or self._cut:
            return None
        residual = self.current_restriction()
        if residual.done or (self._expecting and not self._moved and residual.open):
            return None
        self._frontier, self._cut = Frontier({}, {}, residual.end), True
        return self._frontier, residual

    def check_done(self) -> bool:
        frontier = self.current_restriction()
        if not frontier.done:
            raise ValueError(
                f"the reader returned with {len(frontier.open)} partitions open and {len(frontier.waiting)} "
                "waiting, without deferring the rest"
            )
        return True

    def current_progress(self) -> RestrictionProgress:
        """Return one half while anything is left: Beam does not split what reports to be complete."""
        return RestrictionProgress(fraction=1.0 if self.current_restriction().done else 0.5)

    def is_bounded(self) -> bool:
        return self._frontier.end is not None


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

    def initial_estimator_state(self, element: Any, restriction: Frontier) -> Timestamp:
        return beam_watermark(restriction.watermark)

    def create_watermark_estimator(self, estimator_state: Timestamp) -> FrontierWatermarkEstimator:
        return FrontierWatermarkEstimator(estimator_state)

    def estimator_state_coder(self) -> coders.Coder:
        return coders.TimestampCoder()
