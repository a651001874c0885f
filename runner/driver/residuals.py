"""Residuals at rest: decoded, dealt out anew between epochs, truncated when the pipeline drains.

`rebalance` is the runner's one extension of Beam's model. A restriction cannot talk to another one while
both run; between epochs all of them are durable and at rest, and a restriction provider that has

    rebalance(element, [(restriction, watermark_state)], n) -> [(restriction, watermark_state)]

may join all residuals of one element and deal them out again over n slots. Only residuals of the same
transform, element id, window, timestamp and pane meet; the hold of what was joined never goes back.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from apache_beam.internal import pickler
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.common import DoFnSignature
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Origin, Stage
from penstock.runner.protocol.record import Residual


@dataclass(frozen=True, slots=True)
class ResidualView:
    """A residual as a person may look at it: step, element, restriction, watermark in µs."""

    transform: str
    element_id: str
    element: Any
    restriction: Any
    watermark_us: int


class _Reader:
    """The splittable DoFn of one step: its coder and restriction provider."""

    def __init__(self, context: PlanContext, stage: Stage) -> None:
        edge = context.plan.edges[stage.inputs[0]]
        self.coder = context.coder(edge.collection).get_impl()
        payload = api.ParDoPayload.FromString(
            api.PTransform.FromString(stage.transforms[stage.reads]).spec.payload
        )
        fn = pickler.loads(payload.do_fn.payload)[0]
        self.provider = DoFnSignature(fn).get_restriction_provider()


class Residuals:
    """Works on the residuals of a plan's steps, on the driver."""

    def __init__(self, context: PlanContext) -> None:
        self.context = context
        self._readers = {
            stage.step: _Reader(context, stage)
            for stage in context.plan.stages
            if stage.origin is Origin.RESIDUAL
        }

    def dealt(self, residuals: Iterable[Residual], parts: int) -> list[Residual]:
        """Join and deal out what the providers can; all else stays as it is."""
        dealt: list[Residual] = []
        groups: dict[Any, list[Residual]] = collections.defaultdict(list)
        for residual in residuals:
            if hasattr(self._readers[residual.transform].provider, "rebalance"):
                groups[self._identity(residual)].append(residual)
            else:
                dealt.append(residual)
        for group in groups.values():
            dealt.extend(self._rebalanced(group, parts))
        return dealt

    def truncated(self, residuals: Iterable[Residual]) -> list[Residual]:
        """What is still to be read in a drain: bounded restrictions, unless a provider says otherwise."""
        kept = []
        for residual in residuals:
            reader = self._readers[residual.transform]
            value, (element, restriction, state) = self._opened(residual)
            rest = reader.provider.truncate(element, restriction)
            if rest is not None:
                kept.append(replace(residual, element=self._closed(reader, value, element, rest, state)))
        return kept

    def open_windows(self, residuals: Iterable[Residual]) -> dict[str, int]:
        """For each step that has side inputs: the last timestamp, in µs, of the earliest window it still reads in."""
        sides = {s.step for s in self.context.plan.stages if s.origin is Origin.RESIDUAL and s.sides}
        earliest: dict[str, int] = {}
        for residual in residuals:
            if residual.transform in sides:
                value, _ = self._opened(residual)
                end = min(window.max_timestamp().micros for window in value.windows)
                earliest[residual.transform] = min(end, earliest.get(residual.transform, end))
        return earliest

    def views(self, residuals: Iterable[Residual]) -> tuple[ResidualView, ...]:
        """Residuals with their restrictions decoded; those of steps that were dropped are left out."""
        views = []
        for residual in residuals:
            if residual.transform not in self._readers:
                continue
            _, (element, restriction, _) = self._opened(residual)
            views.append(
                ResidualView(
                    residual.transform, residual.element_id, element, restriction, residual.watermark_us
                )
            )
        return tuple(views)

    def _rebalanced(self, group: list[Residual], parts: int) -> list[Residual]:
        reader = self._readers[group[0].transform]
        opened = [self._opened(residual) for residual in group]
        value, (element, _, _) = opened[0]
        given = [(restriction, state) for _, (_, restriction, state) in opened]
        hold = min(residual.watermark_us for residual in group)
        due = min(residual.not_before_us for residual in group)
        return [
            replace(
                group[0],
                element=self._closed(reader, value, element, restriction, state),
                watermark_us=hold,
                not_before_us=due,
            )
            for restriction, state in reader.provider.rebalance(element, given, parts)
        ]

    def _identity(self, residual: Residual) -> Any:
        value, _ = self._opened(residual)
        return residual.transform, residual.element_id, value.windows, value.timestamp, value.pane_info

    def _opened(self, residual: Residual) -> tuple[WindowedValue, tuple[Any, Any, Any]]:
        value = self._readers[residual.transform].coder.decode_nested(residual.element)
        (element, (restriction, state)), _size = value.value
        return value, (element, restriction, state)

    @staticmethod
    def _closed(reader: _Reader, value: WindowedValue, element: Any, restriction: Any, state: Any) -> bytes:
        size = reader.provider.restriction_size(element, restriction)
        whole = value.with_value(((element, (restriction, state)), size))
        encoded: bytes = reader.coder.encode_nested(whole)
        return encoded
