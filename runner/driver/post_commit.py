"""Finds the post-commit DoFns of a plan. The driver calls some of their methods itself, for example to clean up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from apache_beam.internal import pickler
from apache_beam.portability.api import beam_runner_api_pb2 as api

from penstock.parked import ParkedTable
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Origin, Plan
from penstock.runner.protocol.record import EpochState


@dataclass(frozen=True, slots=True)
class PostCommitFn:
    """A post-commit step's DoFn, and the coder of its Publications."""

    step: str
    fn: Any
    coder: Any

    def named_by(self, state: EpochState) -> list[Any]:
        """Return the elements that the state of a record names for this step."""
        return [
            self.coder.decode_nested(each.element).value
            for each in state.publications
            if each.transform == self.step
        ]

    def parked_in(self, state: EpochState) -> list[ParkedTable]:
        """Return the parked tables that the state of a record has for this step."""
        return [each.table for each in state.parked if each.transform == self.step]


def post_commit_fns(plan: Plan, context: PlanContext) -> Iterator[PostCommitFn]:
    """Yield the DoFn of each post-commit step. It is a copy for the driver: workers unpickle their own."""
    for stage in plan.stages:
        if stage.origin is not Origin.PUBLISH:
            continue
        proto = api.PTransform.FromString(stage.transforms[stage.step])
        # The payload of a ParDo in Python is the pickled tuple (DoFn, args, kwargs, side inputs, windowing).
        fn = pickler.loads(api.ParDoPayload.FromString(proto.spec.payload).do_fn.payload)[0]
        coder = context.coder(plan.edges[stage.inputs[0]].collection).get_impl()
        yield PostCommitFn(stage.step, fn, coder)
