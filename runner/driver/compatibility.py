"""Checks whether a pipeline is compatible with a checkpoint, and selects the state of its steps.

Everything in a record is tied to the name of a step. A checkpoint is rejected if it holds

- state of steps that the pipeline does not have, unless they are named in `--drop_state`. Otherwise that state would
  be stored forever, or a later step with the same name would read it.
- state that a step would decode differently (see `state_schema.py`),
- steps that would get no input, or the same input twice, because an Impulse fires only once per checkpoint.

A step that gets or loses outputs is the same step, although Beam then gives it another name: see `_renamed_steps`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from apache_beam.portability.api import beam_runner_api_pb2 as api

from penstock.runner.driver.state_schema import changed_schema, state_schemas
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.phases import step_name
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.protocol.record import CommitRecord, EpochState, WatermarkKey

_RESIDUALS = "residuals"
"""The kind of state that is the position of a source."""
_POSITION = (
    "and they are its position in the change stream: without them it would begin at its start again, and changes would "
    "be missing or come twice"
)


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
    state = _with_names_of(context.plan, drop_steps(last.state, dropped))
    if orphans := _orphans(state, context.plan):
        raise CheckpointError(
            "the checkpoint holds state for which this pipeline has no step:\n"
            + _listed(f"{name} ({kind})" for name, kind in orphans)
            + "\n"
            + _remedy(frozenset(kind for _, kind in orphans))
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

    Such a watermark would never advance again, and would hold back the watermark that the pipeline reports. Steps that
    have got or lost outputs since have their new names.
    """
    state = _with_names_of(plan, drop_steps(state, dropped))
    # Outputs of a TestStream have watermarks but no state, so their steps are no durable names.
    names = plan.durable_names() | {stage.step for stage in plan.stages}
    return replace(
        state,
        watermarks={key: us for key, us in state.watermarks.items() if key.step in names},
        observed_watermarks={key: us for key, us in state.observed_watermarks.items() if key.step in names},
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
        parked=tuple(p for p in state.parked if p.transform not in names),
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


def _orphans(state: EpochState, plan: Plan) -> list[tuple[str, str]]:
    """The steps that the plan does not have, each with every kind of state that it has."""
    known = plan.durable_names()
    return sorted((name, kind) for name, kind in _owners(state) if name not in known)


def _remedy(kinds: frozenset[str]) -> str:
    """What to do about steps that the plan does not have, from the kinds of their state."""
    remedies = ["Give the steps their old names back."]
    if kinds - {_RESIDUALS}:
        remedies.append(
            "A sink that was removed may have rows that it has not written: start the pipeline with it once more, and "
            "stop it when they are written. Or delete the state of a step with --drop_state NAME."
        )
    if _RESIDUALS in kinds:
        remedies.append(
            f"A step with {_RESIDUALS} is a source, {_POSITION}. So keep the step. If the checkpoint belongs to "
            "another pipeline, give --checkpoint_dir another folder. (Only for a source that this pipeline no longer "
            "reads on purpose, --drop_state NAME deletes the position.)"
        )
    return " ".join(remedies)


def _with_names_of(plan: Plan, state: EpochState) -> EpochState:
    """Return the state under the names that its steps have in the plan."""
    names = _renamed_steps(plan, state)
    if not names:
        return state

    def name_of(step: str) -> str:
        return names.get(step, step)

    def renamed(watermarks: Mapping[WatermarkKey, int]) -> dict[WatermarkKey, int]:
        return {replace(key, step=name_of(key.step)): us for key, us in watermarks.items()}

    # All parts of a state that name a step: a part that is left out would keep the old name, for which there is no
    # step.
    return replace(
        state,
        fired_impulses={name: tuple(map(name_of, steps)) for name, steps in state.fired_impulses.items()},
        residuals=tuple(replace(r, transform=name_of(r.transform)) for r in state.residuals),
        ended=tuple(replace(r, transform=name_of(r.transform)) for r in state.ended),
        publications=tuple(replace(p, transform=name_of(p.transform)) for p in state.publications),
        parked=tuple(replace(p, transform=name_of(p.transform)) for p in state.parked),
        state_runs=tuple(replace(run, stage=name_of(run.stage)) for run in state.state_runs),
        timers=tuple(replace(t, stage=name_of(t.stage)) for t in state.timers),
        watermarks=renamed(state.watermarks),
        observed_watermarks=renamed(state.observed_watermarks),
        schemas={name_of(step): schema for step, schema in state.schemas.items()},
    )


def _renamed_steps(plan: Plan, state: EpochState) -> dict[str, str]:
    """Return the names in the plan of steps that had other outputs when the state was written, by their old names.

    Beam (2.77, `_MultiParDo`) puts a ParDo with several outputs into a transform with the ParDo's label: `Read` becomes
    `Read/ParDo(ReadFn)`. So a step that gets an error output or a log would be another step.
    """
    known = plan.durable_names()
    # The schemas have all steps of the program that wrote the state, also steps that left only a watermark.
    held = {name for name, _ in _owners(state)} | state.schemas.keys()
    if held <= known:
        return {}
    several = _steps_with_several_outputs(plan)
    free = {_label(name) if name in several else name: name for name in known - held}
    found = {}
    for name in sorted(held - known):
        # As it is: the step has got outputs. As a label: it had several. Popped, so that no step gets the state of two.
        for label in (name, _label(name)):
            if label in free:
                found[name] = free.pop(label)
                break
    return found


def _label(step: str) -> str:
    """Return the label of a ParDo with several outputs, from its full name."""
    label, _, inner = step.rpartition("/")
    return label if label and inner.endswith(")") else step


def _steps_with_several_outputs(plan: Plan) -> frozenset[str]:
    transforms = (
        api.PTransform.FromString(data) for stage in plan.stages for data in stage.transforms.values()
    )
    return frozenset(step_name(each) for each in transforms if len(each.outputs) > 1)


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
        _RESIDUALS: (r.transform for r in state.residuals),
        "publications": (p.transform for p in state.publications),
        "parked tables": (p.transform for p in state.parked),
        "state": (run.stage for run in state.state_runs),
        "timers": (t.stage for t in state.timers),
    }
    return {(name, kind) for kind, owners in names.items() for name in owners}


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
