"""What a worker process keeps of a plan from task to task: its coders, and processors that stand ready."""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from penstock.runner.harness.bundle import PlanContext, StageProcessor
from penstock.runner.harness.finalizers import Finalizers
from penstock.runner.planning.plan import Plan, Stage
from penstock.runner.planning.program import adopt

KEPT_PLANS = 4
"""Plans that a process keeps, those used last; one that runs many pipelines in turn must not collect them all."""


class Prepared:
    """A plan in this process."""

    def __init__(self, plan: Plan) -> None:
        adopt(plan.program)
        self.context = PlanContext(plan)
        self.finalizers = Finalizers()
        self._idle: defaultdict[int, list[StageProcessor]] = defaultdict(list)

    def processor(self, stage: Stage) -> StageProcessor:
        """Hand out a processor of a stage: one that was given back, or a new one."""
        idle = self._idle[stage.index]
        return idle.pop() if idle else StageProcessor(self.context, stage)

    def give_back(self, processor: StageProcessor) -> None:
        """Keep a processor, whose bundle has ended in order, for the next task."""
        self._idle[processor.stage.index].append(processor)

    def tear_down(self) -> None:
        """Drop the processors; their DoFns' `teardown` is best effort, as everywhere in Beam."""
        for processors in self._idle.values():
            for processor in processors:
                processor.tear_down()


_kept: OrderedDict[str, Prepared] = OrderedDict()


def prepared(plan: Plan) -> Prepared:
    """The plan as this process has it, made ready when it is first asked for."""
    if plan.id not in _kept:
        _kept[plan.id] = Prepared(plan)
    _kept.move_to_end(plan.id)
    while len(_kept) > KEPT_PLANS:
        _kept.popitem(last=False)[1].tear_down()
    return _kept[plan.id]
