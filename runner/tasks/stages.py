"""Which kind of run a stage needs."""

from __future__ import annotations

from penstock.runner.harness.bundle import StageProcessor
from penstock.runner.tasks.grouping_run import CompleteRun, PanesRun, TriggeredRun
from penstock.runner.tasks.stage_run import Setting, StageRun
from penstock.runner.tasks.stateful_run import StatefulRun


def run_of(processor: StageProcessor, setting: Setting) -> StageRun:
    """Make the run of a stage for one task."""
    stage = processor.stage
    kind: type[StageRun] = StageRun
    if stage.grouped:
        in_batch = TriggeredRun if stage.triggered else CompleteRun
        kind = in_batch if setting.bounded else PanesRun
    elif stage.state:
        kind = StatefulRun
    return kind(processor, setting)
