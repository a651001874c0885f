"""Continues a bounded read if the program is started again with a later end, or without an end ("read on").

A read with an end is bounded. When it has ended, it has no residual, so the record would not know where it ended.
Therefore the record keeps one *ended* residual for each element of a source that can read on (its restriction provider
has the method `read_on`). If the program that takes over has a later end, the read gets a *successor*: a new residual
that begins after the old end. The successor waits until all residuals of the previous read have ended, and it holds
the watermark until then. So no change is read twice, and changes of one key stay in order.

When the old end was reached, the watermark went to the end of time. Windows were closed, and state was deleted. So
steps with windows or state can take no more elements. The pipeline is rejected with their names, unless they have the
annotation `FORGETS_AT_END`. Other steps store nothing about the past, so for them the watermark may go back to the old
end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from apache_beam.portability.api import beam_runner_api_pb2 as api

from penstock.publish import FORGETS_AT_END
from penstock.runner.driver.residuals import Residuals
from penstock.runner.driver.schedule import is_successor
from penstock.runner.planning.plan import Origin, Plan, Stage
from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.protocol.record import EpochState, Residual, WatermarkKey


def ended_after(
    before: EpochState, residuals: Sequence[Residual], readers: Collection[str]
) -> tuple[Residual, ...]:
    """Return one residual for each element that was read to its end, the last one of each chain of successors.

    `before` is the state that the epoch started from, `residuals` are those that remain; only `readers` count.
    """
    alive = {(residual.transform, residual.element_id) for residual in residuals}
    ended = {
        (residual.transform, residual.element_id): residual
        for residual in (*before.ended, *before.residuals)
        if residual.transform in readers and (residual.transform, residual.element_id) not in alive
    }
    # Of a chain of successors only the last read counts: the ends of the others are before its start.
    known = alive | ended.keys()
    return tuple(
        residual
        for (step, name), residual in ended.items()
        if not any(step == other and is_successor(later, name) for other, later in known)
    )


def read_on(state: EpochState, plan: Plan, residuals: Residuals) -> EpochState | None:
    """Return the state with a successor for each read whose end the program has moved or removed.

    None if there is no such read: then the pipeline continues from the state as it is.

    Raises:
        CheckpointError: the pipeline was drained, or steps that had ended have windows or state.
        PenstockError: the source's, because the new end is earlier than the old one.
    """
    last = _last_of_chains((*state.ended, *state.residuals))
    pairs = [(residual, residuals.read_on(residual)) for residual in last]
    successors = [successor for _, successor in pairs if successor is not None]
    if not successors:
        return None
    # A drain is final: it has closed windows and truncated reads that would be continued here.
    if state.draining:
        raise CheckpointError(
            "the pipeline was drained. A drained pipeline cannot read further, even with a later end. Pass another "
            "folder as --checkpoint_dir, and a start after the end that it had"
        )
    # Only a read that has reached its end has moved the watermark past it. The watermarks of the others stay.
    passed = [
        s for s in successors if state.watermarks.get(WatermarkKey.output(s.transform), 0) > s.watermark_us
    ]
    if passed:
        state = _with_lower_watermarks(state, plan, passed)
    following = {(successor.transform, successor.element_id) for successor in successors}
    return replace(
        state,
        residuals=(*state.residuals, *successors),
        ended=tuple(
            each
            for each in state.ended
            if not any(
                each.transform == step and is_successor(name, each.element_id) for step, name in following
            )
        ),
        done=False,
    )


def _last_of_chains(residuals: Sequence[Residual]) -> list[Residual]:
    """Return one residual for each element: one of the last read that follows the others."""
    by_name = {(residual.transform, residual.element_id): residual for residual in residuals}
    return [
        residual
        for (step, name), residual in by_name.items()
        if not any(step == other and is_successor(later, name) for other, later in by_name)
    ]


def _with_lower_watermarks(state: EpochState, plan: Plan, passed: Sequence[Residual]) -> EpochState:
    """Lower all watermarks to the lowest one of the residuals. Refuse this if a step after them keeps state."""
    if closed := _steps_with_state(plan, {residual.transform for residual in passed}):
        raise CheckpointError(
            "the pipeline had reached its end, so all windows are closed, and these steps with windows, state or side "
            f"inputs can take no more elements: {', '.join(closed)}. Pass the end that it had, or start with another "
            "folder as --checkpoint_dir and a start after that end"
        )
    lowest = min(residual.watermark_us for residual in passed)
    return replace(
        state,
        # Lower all watermarks, because none may be above the watermark of a producer. The next epochs raise them again.
        watermarks={key: min(us, lowest) for key, us in state.watermarks.items()},
        observed_watermarks={},
    )


def _steps_with_state(plan: Plan, readers: Collection[str]) -> list[str]:
    """Return the steps after these readers that keep state, group, or have side inputs."""
    reached = {s.index for s in plan.stages if s.origin is Origin.RESIDUAL and s.step in readers}
    # Repeat until no new stage is reached, because edges are not sorted.
    size = 0
    while size < len(reached):
        size = len(reached)
        reached |= {edge.consumer for edge in plan.edges if not reached.isdisjoint(edge.producers)}
    stages = (stage for stage in plan.stages if stage.index in reached)
    return sorted(
        stage.state or stage.label
        for stage in stages
        if stage.waiting or stage.sides or (stage.state and not _forgets_at_end(stage))
    )


def _forgets_at_end(stage: Stage) -> bool:
    if stage.group:
        return False
    return FORGETS_AT_END in api.PTransform.FromString(stage.transforms[stage.state]).annotations
