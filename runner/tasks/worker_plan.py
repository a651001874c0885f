"""The parts of a plan that a worker process keeps from task to task: its coders, and idle stage processors."""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from penstock.runner.harness.bundle import PlanContext, StageProcessor
from penstock.runner.harness.finalizers import Finalizers
from penstock.runner.planning.plan import Plan, Stage
from penstock.runner.planning.program import adopt_program
from penstock.runner.tasks.coder_warnings import forward_coder_warnings

KEPT_PLANS = 4
"""How many plans a process keeps, those used last. A worker may run many pipelines, one after the other."""


class WorkerPlan:
    """A plan in this process."""

    def __init__(self, plan: Plan) -> None:
        # Do this before any coder or DoFn is unpickled: it may be a class of the driver's program.
        adopt_program(plan.program)
        forward_coder_warnings()
        self.context = PlanContext(plan)
        self.finalizers = Finalizers()
        self._idle: defaultdict[int, list[StageProcessor]] = defaultdict(list)

    def processor(self, stage: Stage) -> StageProcessor:
        """Return a processor of a stage: an idle one, or a new one."""
        idle = self._idle[stage.index]
        # Take the processor that was used last: its caches are warm.
        return idle.pop() if idle else StageProcessor(self.context, stage)

    def give_back(self, processor: StageProcessor) -> None:
        """Keep a processor for the next task. Its bundle must have ended without an error."""
        self._idle[processor.stage.index].append(processor)

    def tear_down(self) -> None:
        """Tear the idle processors down. A DoFn's `teardown` is best effort, as everywhere in Beam."""
        for processors in self._idle.values():
            for processor in processors:
                processor.tear_down()


_plans: OrderedDict[str, WorkerPlan] = OrderedDict()


def worker_plan_of(plan: Plan) -> WorkerPlan:
    """Return this process's `WorkerPlan`, which is made at the first call."""
    if plan.id not in _plans:
        _plans[plan.id] = WorkerPlan(plan)
    _plans.move_to_end(plan.id)
    while len(_plans) > KEPT_PLANS:
        _plans.popitem(last=False)[1].tear_down()
    return _plans[plan.id]
