"""Calls the clean-up of post-commit DoFns: they delete what failed epochs staged (`penstock.publish.CleansUp`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from penstock.parked import ParkedTable
from penstock.publish import CleansUp, ParksTables
from penstock.runner.driver.post_commit import post_commit_fns
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.record import CommitRecord


def clean_ups(plan: Plan, record: CommitRecord) -> Iterator[Callable[[str], None]]:
    """Yield for each post-commit step with a clean-up a function that runs it, given the job's name.

    This driver must have committed `record` itself.
    """
    for step in post_commit_fns(plan, PlanContext(plan)):
        if isinstance(step.fn, CleansUp):
            yield functools.partial(_clean_up, step.fn, record, step.named_by(record.state))
        if isinstance(step.fn, ParksTables):
            yield functools.partial(_clean_up_parked, step.fn, record, step.parked_in(record.state))


def _clean_up_parked(fn: ParksTables, record: CommitRecord, parked: list[ParkedTable], job: str) -> None:
    fn.clean_up_parked(job, record.generation, record.number, parked)


def _clean_up(fn: CleansUp, record: CommitRecord, named: list[Any], job: str) -> None:
    fn.clean_up(job, record.generation, record.number, named)
