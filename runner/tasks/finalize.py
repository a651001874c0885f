"""Run bundle finalizers in this process when no later task of the pipeline would do it."""

from __future__ import annotations

from collections.abc import Collection

from penstock.runner.planning.plan import Plan
from penstock.runner.tasks.worker_plan import worker_plan_of


def finalize_bundles(plan: Plan, epoch: int, committed: Collection[str]) -> frozenset[str]:
    """Run the finalizers that this process holds for task attempts in `committed`; return the nonces of these.

    `committed` are task attempts of `epoch`, which is the last record.
    """
    here = worker_plan_of(plan)
    found = here.finalizers.nonces().intersection(committed)
    if found:
        for processor in here.finalizers.run(epoch, found):
            here.give_back(processor)
    return found
