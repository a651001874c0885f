"""Calls the clean-up of post-commit DoFns: they delete what failed epochs staged (`penstock.publish.CleansUp`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from apache_beam.internal import pickler
from apache_beam.portability.api import beam_runner_api_pb2 as api

from penstock.publish import CleansUp
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Origin, Plan
from penstock.runner.protocol.record import CommitRecord


def clean_ups(plan: Plan, record: CommitRecord) -> Iterator[Callable[[str], None]]:
    """Yield for each post-commit step with a clean-up a function that runs it, given the job's name.

    This driver must have committed `record` itself.
    """
    context = PlanContext(plan)
    for stage in plan.stages:
        if stage.origin is not Origin.PUBLISH:
            continue
        proto = api.PTransform.FromString(stage.transforms[stage.step])
        # The payload of a ParDo in Python is the pickled tuple (DoFn, args, kwargs, side inputs, windowing).
        fn = pickler.loads(api.ParDoPayload.FromString(proto.spec.payload).do_fn.payload)[0]
        if isinstance(fn, CleansUp):
            coder = context.coder(plan.edges[stage.inputs[0]].collection).get_impl()
            named: list[Any] = [
                coder.decode_nested(p.element).value
                for p in record.state.publications
                if p.transform == stage.step
            ]
            yield functools.partial(_clean_up, fn, record, named)


def _clean_up(fn: CleansUp, record: CommitRecord, named: list[Any], job: str) -> None:
    fn.clean_up(job, record.generation, record.number, named)
