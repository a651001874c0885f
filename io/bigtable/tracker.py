"""The restriction of the reader: a Frontier, with its coder, its tracker and its watermark estimator.

The tracker claims steps of a frontier; a checkpoint is the frontier after the last claimed step. Claims of
records and heartbeats are many, so they are collected and folded into the frontier only when somebody asks
for it; steps of lineage are few and applied at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from apache_beam import coders
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker, WatermarkEstimator
from apache_beam.transforms.core import WatermarkEstimatorProvider
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from penstock.io.bigtable.frontier import Advanced, Frontier, LineageError, Segment, Step
from penstock.io.bigtable.keys import KeyRange, shown

VERSION = 1


@dataclass(frozen=True, slots=True)
class Tick:
    """What an idle reader claims to learn whether it has been cut; it moves nothing.

    `expecting`: the reader lies behind and a stream that it has opened will say something soon.
    """

    expecting: bool = False


class FrontierCoder(coders.Coder):  # type: ignore[misc, unused-ignore]
    """Encodes a Frontier as compact JSON: ``{"v":1, "asked", "dealt", "end", "finished", "segments":[…]}``.

    A segment is ``[start, end, token, watermark]``, followed by the start and end of its target where that is
    another range; row keys are text in which each character is one byte (Latin-1). Equal frontiers have
    equal bytes.
    """

    def encode(self, value: Frontier) -> bytes:
        document = {
            "v": VERSION,
            "asked": _keys(value.asked),
            "dealt": value.dealt,
            "end": value.end,
            "finished": [_keys(part) for part in value.finished],
            "segments": [_segment(segment) for segment in value.segments],
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
            tuple([_read_segment(*fields) for fields in document["segments"]]),
            _read_keys(document["asked"]),
            tuple([_read_keys(part) for part in document["finished"]]),
            document["end"],
            document["dealt"],
        )

    def is_deterministic(self) -> bool:
        return True

    def to_type_hint(self) -> type[Frontier]:
        return Frontier

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


def _segment(segment: Segment) -> list[Any]:
    target = [] if segment.target == segment.range else _keys(segment.target)
    return [*_keys(segment.range), segment.token, segment.watermark, *target]


def _read_segment(start: str, end: str, token: str | None, watermark: int, *target: str) -> Segment:
    own = _read_keys((start, end))
    return Segment(own, token, watermark, _read_keys(target) if target else own)


def _keys(part: KeyRange) -> list[str]:
    return [part.start.decode("latin-1"), part.end.decode("latin-1")]


def _read_keys(texts: Iterable[str]) -> KeyRange:
    return KeyRange._make(text.encode("latin-1") for text in texts)


class FrontierTracker(RestrictionTracker):  # type: ignore[misc, unused-ignore]
    """Claims the steps of one `process` call. Beam calls it under a lock, from the reader and the runner.

    A split is put off (None: ask again) until the reader has claimed one step, or has said by a tick that
    none is to be expected. Otherwise a runner that cuts sooner than the service needs to send the first
    message of a stream would throw away the same work for ever.
    """

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier.settled()
        self._ready = frozenset(self._frontier.ready())
        self._advanced: dict[KeyRange, tuple[str, int]] = {}
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
        if type(position) is Advanced:
            if position.partition not in self._ready:
                raise LineageError(f"a record of {shown(position.partition)}, which may not be open")
            self._advanced[position.partition] = position.token, position.watermark
            self._moved = True
        elif isinstance(position, Tick):
            self._expecting = position.expecting
        else:
            self._frontier = self.current_restriction().apply(position)
            self._ready = frozenset(self._frontier.ready())
            self._moved = True
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Frontier, Frontier] | None:
        """Cut: the primary is what was claimed, the residual all the rest.

        Only a fraction of 0 is granted. A frontier is dealt over workers between bundles, when all its
        parts are at rest (`rebalance`); torn apart while it is read, a merge could lose one of its parents.
        """
        if fraction_of_remainder != 0 or self._cut:
            return None
        residual = self.current_restriction()
        if residual.done or (self._expecting and not self._moved and self._ready):
            return None
        self._frontier, self._cut = Frontier((), residual.asked, (), residual.end), True
        return self._frontier, residual

    def check_done(self) -> bool:
        frontier = self.current_restriction()
        if not frontier.done:
            raise ValueError(
                f"the reader returned with {len(frontier.segments)} segments left to read, without deferring them"
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
