"""Checks whether a pipeline is compatible with a checkpoint, and selects the state of its steps.

Everything in a record is tied to the name of a step. A checkpoint is rejected if it holds

- state of steps that the pipeline does not have, unless they are named in `--drop_state`. Otherwise that state would
  be stored forever, or a later step with the same name would read it.
- state that a step would decode differently (see `state_schema.py`),
- steps that would get no input, or the same input twice, because an Impulse fires only once per checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from penstock.runner.driver.state_schema import changed_schema, state_schemas
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.protocol.record import CommitRecord, EpochState


def check_compatibility(last: CommitRecord | None, context: PlanContext, dropped: Collection[str]) -> None:
    """Reject a checkpoint if the pipeline cannot continue from it without loss. State of `dropped` steps may be lost.

    Raises:
        CheckpointError: the message names each step, and what to do.
    """
    if alive := sorted(context.plan.durable_names().intersection(dropped)):
        raise CheckpointError(
            f"--drop_state is for steps that the pipeline no longer has, and this pipeline has {', '.join(alive)}: "
            "their state would be deleted after each epoch. Leave the option out. To start a step without its old "
            "state, give it another name and drop the old name"
        )
    if last is None:
        return
    state = drop_steps(last.state, dropped)
    if orphans := _orphans(state, context.plan):
        raise CheckpointError(
            "the checkpoint holds state for which this pipeline has no step:\n"
            + _listed(orphans)
            + "\nGive the steps their old names back, or delete their state with --drop_state NAME."
        )
    if changes := _changed_schemas(state, context):
        raise CheckpointError(
            "this pipeline would decode parts of the checkpoint differently from how they were written:\n"
            + _listed(changes)
            + "\nGive the steps their old types, coders, states, timers and windows back. Or start them without "
            "their old state: give them other names, and delete the old state with --drop_state NAME."
        )
    if starved := _starved_or_repeated(state, context.plan):
        raise CheckpointError(
            "parts of this pipeline would get no elements, or get the same elements twice:\n"
            + _listed(starved)
            + "\nA Create or an Impulse fires once per checkpoint: keep its name, and give each new step its own "
            "Create or Impulse. A pipeline that has ended or is being drained starts no new source: give "
            "--checkpoint_dir another folder."
        )


def state_for_plan(state: EpochState, plan: Plan, dropped: Collection[str]) -> EpochState:
    """Return the state without `dropped` steps, and without watermarks of steps that the plan does not have.

    Such a watermark would never advance again, and would hold back the watermark that the pipeline reports.
    """
    state = drop_steps(state, dropped)
    # Outputs of a TestStream have watermarks but no state, so their steps are no durable names.
    known = plan.durable_names() | {stage.step for stage in plan.stages}
    return replace(
        state,
        watermarks={key: mark for key, mark in state.watermarks.items() if key.step in known},
        observed_watermarks={
            key: mark for key, mark in state.observed_watermarks.items() if key.step in known
        },
    )


def drop_steps(state: EpochState, names: Collection[str]) -> EpochState:
    """Return the state without anything that belongs to steps of these names, except their watermarks."""
    if not names:
        return state
    fired = state.fired_impulses
    fed = {name: tuple(step for step in steps if step not in names) for name, steps in fired.items()}
    return replace(
        state,
        # An Impulse all of whose steps are dropped counts as not fired: it fires again for steps with new names.
        fired_impulses={name: fed[name] for name, steps in fired.items() if fed[name] or not steps},
        residuals=tuple(r for r in state.residuals if r.transform not in names),
        ended=tuple(r for r in state.ended if r.transform not in names),
        publications=tuple(p for p in state.publications if p.transform not in names),
        state_runs=tuple(run for run in state.state_runs if run.stage not in names),
        timers=tuple(t for t in state.timers if t.stage not in names),
    )


def pending_impulses(state: EpochState, plan: Plan) -> tuple[str, ...]:
    """Return the Impulses that have not fired for the steps that they feed.

    An edited pipeline may have new Impulses. An Impulse also fires again if all steps that it once fed were renamed.
    """
    fired = state.fired_impulses
    return tuple(
        name
        for name, steps in plan.fed_by_impulse().items()
        if name not in fired or (fired[name] and steps and steps.isdisjoint(fired[name]))
    )


def _orphans(state: EpochState, plan: Plan) -> list[str]:
    """The state of steps that the plan does not have, one line per step and kind of state."""
    known = plan.durable_names()
    return sorted(f"{name} ({kind})" for name, kind in _owners(state) if name not in known)


def _changed_schemas(state: EpochState, context: PlanContext) -> list[str]:
    """The state that its step would now decode differently, one line each."""
    with_timers = {timers.stage for timers in state.timers if timers.pending}
    with_state = {name for name, _ in _owners(state)}
    return list(changed_schema(state.schemas, state_schemas(context), with_state, with_timers))


def _starved_or_repeated(state: EpochState, plan: Plan) -> list[str]:
    """The steps that would never get an element, or get the same elements again, one line each."""
    fired, fed, new = state.fired_impulses, plan.fed_by_impulse(), pending_impulses(state, plan)
    if state.done or state.draining:
        return [f"{name}: the pipeline has ended or is being drained" for name in new]
    # Impulses that the pipeline no longer has. If a new Impulse feeds one of their steps, the step gets the same
    # elements a second time, under another name.
    former = {step: name for name in fired.keys() - fed.keys() for step in fired[name]}
    repeated = [
        f"{step}: {former[step]} has fed it, and {name} would feed it again"
        for name in new
        for step in fed[name] & former.keys()
    ]
    starved = [
        f"{step}: {name} has already fired and does not fire again"
        for name in fed.keys() - set(new)
        for step in fed[name].difference(fired[name])
    ]
    return sorted(repeated + starved)


def _owners(state: EpochState) -> set[tuple[str, str]]:
    """The names of steps that the record holds state for, each with the kind of state."""
    names: dict[str, Iterable[str]] = {
        "residuals": (r.transform for r in state.residuals),
        "publications": (p.transform for p in state.publications),
        "state": (run.stage for run in state.state_runs),
        "timers": (t.stage for t in state.timers),
    }
    return {(name, kind) for kind, owners in names.items() for name in owners}


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
