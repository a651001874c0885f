"""Residuals between epochs: decode them, rebalance them, truncate them when the pipeline drains.

`rebalance` extends Beam's model. While two restrictions are processed, they cannot exchange work. Between epochs all
restrictions are stored, and a restriction provider with the method

    rebalance(element, [(restriction, watermark_state)], n) -> [(restriction, watermark_state)]

may join all residuals of one element and divide them again into at most n shares. Only residuals of the same transform,
element id, window, timestamp and pane are joined. Each share gets the lowest watermark hold of the joined residuals.

A provider may also have the attribute `watermark_estimators` (its WatermarkEstimatorProvider) and the method

    read_on(element) -> element | None

for a program that is started again with a later end, or without one; see `read_on.py`. And the methods

    rewound(element, restrictions, to) -> restriction
    lost_by_rewind(restrictions) -> text

for a target that goes back to an earlier time; see `penstock.runner.rewind`.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from apache_beam.internal import pickler
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.common import DoFnSignature
from apache_beam.utils.windowed_value import WindowedValue

from penstock.errors import UsageError
from penstock.runner.driver.schedule import id_of_successor
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Origin, Stage
from penstock.runner.protocol.record import Residual


@dataclass(frozen=True, slots=True)
class ResidualView:
    """A decoded residual, for people and for progress: step, element, restriction, watermark in µs."""

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
        # The payload of a ParDo in Python is the pickled tuple (DoFn, args, kwargs, side inputs, windowing).
        fn = pickler.loads(payload.do_fn.payload)[0]
        # Beam has no public way from a DoFn to its restriction provider; the signature is what its own runners use.
        self.provider = DoFnSignature(fn).get_restriction_provider()


class Residuals:
    """Decodes and changes the residuals of a plan's steps. Used by the driver only."""

    def __init__(self, context: PlanContext) -> None:
        self.context = context
        self._readers = {
            stage.step: _Reader(context, stage)
            for stage in context.plan.stages
            if stage.origin is Origin.RESIDUAL
        }
        # Not a subclass check: sources must not import the runner to offer the method.
        self._that_read_on = frozenset(
            step for step, reader in self._readers.items() if hasattr(reader.provider, "read_on")
        )

    @property
    def readers_that_read_on(self) -> frozenset[str]:
        """The steps whose restriction provider has the method `read_on`."""
        return self._that_read_on

    def read_on(self, residual: Residual) -> Residual | None:
        """Return a new residual that begins after the end of `residual`, as the running program asks; else None.

        Raises:
            PenstockError: the provider's, because the program cannot continue from this end.
        """
        if residual.transform not in self._that_read_on:
            return None
        reader = self._readers[residual.transform]
        value, (element, _, _) = self._decode(residual)
        following = reader.provider.read_on(element)
        if following is None:
            return None
        restriction = reader.provider.initial_restriction(following)
        state, watermark_us = _first_estimate(reader, following, restriction)
        return replace(
            residual,
            element_id=id_of_successor(residual.element_id),
            element=self._encode(reader, value, following, restriction, state),
            watermark_us=watermark_us,
            not_before_us=0,
        )

    def rewound(self, residuals: Sequence[Residual], to_us: int) -> tuple[Residual, str]:
        """Return one residual that reads again from `to_us` on in place of all, and what the job may lose by it.

        Raises:
            UsageError: the pipeline has several sources, or its source cannot go back.
            PenstockError: the provider's.
        """
        if len({self._identity(each) for each in residuals}) != 1:
            raise UsageError("only a pipeline that reads one source can go back")
        reader = self._readers[residuals[0].transform]
        if not hasattr(reader.provider, "rewound"):
            raise UsageError(f"the source {residuals[0].transform} cannot go back to a time")
        decoded = [self._decode(each) for each in residuals]
        value, (element, _, _) = decoded[0]
        held = [restriction for _, (_, restriction, _) in decoded]
        restriction = reader.provider.rewound(element, held, to_us * 1000)
        state, watermark_us = _first_estimate(reader, element, restriction)
        encoded = self._encode(reader, value, element, restriction, state)
        residual = replace(residuals[0], element=encoded, watermark_us=watermark_us, not_before_us=0)
        return residual, reader.provider.lost_by_rewind(held)

    def rebalance(self, residuals: Iterable[Residual], shares: int) -> list[Residual]:
        """Return the residuals, rebalanced where the restriction provider supports it."""
        rebalanced: list[Residual] = []
        groups: dict[Any, list[Residual]] = collections.defaultdict(list)
        for residual in residuals:
            # Not a subclass check: sources must not import the runner to offer the method.
            if hasattr(self._readers[residual.transform].provider, "rebalance"):
                groups[self._identity(residual)].append(residual)
            else:
                rebalanced.append(residual)
        # Group by group: restrictions of two elements have nothing in common that could be joined.
        for group in groups.values():
            rebalanced.extend(self._rebalance_group(group, shares))
        return rebalanced

    def truncate(self, residuals: Iterable[Residual]) -> list[Residual]:
        """Return the residuals that a drain still reads: bounded restrictions, unless a provider decides otherwise."""
        kept = []
        for residual in residuals:
            reader = self._readers[residual.transform]
            value, (element, restriction, state) = self._decode(residual)
            # Beam's default keeps bounded restrictions whole and drops unbounded ones (`RestrictionProvider.truncate`,
            # 2.77).
            rest = reader.provider.truncate(element, restriction)
            if rest is not None:
                kept.append(replace(residual, element=self._encode(reader, value, element, rest, state)))
        return kept

    def earliest_window_ends_us(self, residuals: Iterable[Residual]) -> dict[str, int]:
        """Return by step with side inputs the last timestamp (µs) of the earliest window that it still reads in."""
        sides = {s.step for s in self.context.plan.stages if s.origin is Origin.RESIDUAL and s.sides}
        earliest: dict[str, int] = {}
        for residual in residuals:
            if residual.transform in sides:
                value, _ = self._decode(residual)
                end = min(window.max_timestamp().micros for window in value.windows)
                earliest[residual.transform] = min(end, earliest.get(residual.transform, end))
        return earliest

    def views(self, residuals: Iterable[Residual]) -> tuple[ResidualView, ...]:
        """Return the residuals with decoded restrictions. Residuals of dropped steps are left out."""
        views = []
        for residual in residuals:
            if residual.transform not in self._readers:
                continue
            _, (element, restriction, _) = self._decode(residual)
            views.append(
                ResidualView(
                    residual.transform, residual.element_id, element, restriction, residual.watermark_us
                )
            )
        return tuple(views)

    def _rebalance_group(self, group: list[Residual], shares: int) -> list[Residual]:
        reader = self._readers[group[0].transform]
        decoded = [self._decode(residual) for residual in group]
        value, (element, _, _) = decoded[0]
        joined = [(restriction, state) for _, (_, restriction, state) in decoded]
        # Each share gets the lowest hold of all: the provider may have divided the work in another way, so no share can
        # be matched with one of the old residuals.
        hold = min(residual.watermark_us for residual in group)
        due = min(residual.not_before_us for residual in group)
        return [
            replace(
                group[0],
                element=self._encode(reader, value, element, restriction, state),
                watermark_us=hold,
                not_before_us=due,
            )
            for restriction, state in reader.provider.rebalance(element, joined, shares)
        ]

    def _identity(self, residual: Residual) -> Any:
        value, _ = self._decode(residual)
        return residual.transform, residual.element_id, value.windows, value.timestamp, value.pane_info

    def _decode(self, residual: Residual) -> tuple[WindowedValue, tuple[Any, Any, Any]]:
        value = self._readers[residual.transform].coder.decode_nested(residual.element)
        # Beam's transform SPLIT_AND_SIZE_RESTRICTIONS emits this form: the original element with its restriction and
        # the state of its watermark estimator, and the size of the restriction.
        (element, (restriction, state)), _size = value.value
        return value, (element, restriction, state)

    @staticmethod
    def _encode(reader: _Reader, value: WindowedValue, element: Any, restriction: Any, state: Any) -> bytes:
        size = reader.provider.restriction_size(element, restriction)
        whole = value.with_value(((element, (restriction, state)), size))
        encoded: bytes = reader.coder.encode_nested(whole)
        return encoded


def _first_estimate(reader: _Reader, element: Any, restriction: Any) -> tuple[Any, int]:
    """Return the state of the watermark estimator of a new restriction, and its watermark in µs."""
    estimators = reader.provider.watermark_estimators
    state = estimators.initial_estimator_state(element, restriction)
    return state, estimators.create_watermark_estimator(state).current_watermark().micros
