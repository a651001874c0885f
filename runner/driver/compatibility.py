"""Whether a pipeline can go on from a checkpoint, and what of it belongs to none of its steps.

Everything in a record is tied to the name of a step. What no step owns is refused, or dropped by name: it would lie
there for ever, or be taken for that of another step which gets the name one day. So is what a step would read as
something else, and a step that would get nothing, or the same again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from penstock.runner.driver.state_schema import changed_schema, state_schemas
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Plan
from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.protocol.record import CommitRecord, EpochState


def refuse_misfit(last: CommitRecord | None, context: PlanContext, dropped: Collection[str]) -> None:
    """Refuse a checkpoint that the pipeline cannot go on from without losing anything; `dropped` names may be lost.

    Raises:
        CheckpointError: the message names each step, and what to do.
    """
    if alive := sorted(context.plan.durable_names().intersection(dropped)):
        raise CheckpointError(
            f"--drop_state is for steps that are gone, and this pipeline has {', '.join(alive)}: what it keeps would "
            "be forgotten after each epoch. Leave the option out; or let the step begin anew: give it another name, "
            "and drop the old one"
        )
    if last is None:
        return
    state = drop_steps(last.state, dropped)
    if left := _orphans(state, context.plan):
        raise CheckpointError(
            "the checkpoint holds what this pipeline has no step for:\n"
            + "\n".join(f"- {line}" for line in left)
            + "\nGive the steps their old names back, or forget what they left with --drop_state NAME."
        )
    if other := _changed_schema(state, context):
        raise CheckpointError(
            "the checkpoint holds what this pipeline would read as something else:\n"
            + "\n".join(f"- {line}" for line in other)
            + "\nGive the steps the types, coders, states, timers and windows back that they had. Or let them begin "
            "anew: give them other names, and forget what the old ones left with --drop_state NAME."
        )
    if wrong := _starved_or_repeated(state, context.plan):
        raise CheckpointError(
            "parts of this pipeline would get no elements, or get them twice:\n"
            + "\n".join(f"- {line}" for line in wrong)
            + "\nA Create or an Impulse fires once in the life of a checkpoint: keep its name, and give new steps one "
            "of their own. A pipeline that has ended or is being drained begins nothing: give --checkpoint_dir another "
            "folder."
        )


def drop_steps(state: EpochState, names: Collection[str]) -> EpochState:
    """The state without what belongs to steps of these names."""
    if not names:
        return state
    fired = state.fired_impulses
    fed = {name: tuple(step for step in steps if step not in names) for name, steps in fired.items()}
    return replace(
        state,
        fired_impulses={name: fed[name] for name, steps in fired.items() if fed[name] or not steps},
        residuals=tuple(r for r in state.residuals if r.transform not in names),
        publications=tuple(p for p in state.publications if p.transform not in names),
        state_runs=tuple(run for run in state.state_runs if run.stage not in names),
        timers=tuple(t for t in state.timers if t.stage not in names),
    )


def pending_impulses(state: EpochState, plan: Plan) -> tuple[str, ...]:
    """Impulses that have not fired for the steps that they feed.

    An edited pipeline may have new ones; one that fed steps which all have other names now fires again.
    """
    started = state.fired_impulses
    return tuple(
        name
        for name, steps in plan.fed_by_impulse().items()
        if name not in started or (started[name] and steps and steps.isdisjoint(started[name]))
    )


def _orphans(state: EpochState, plan: Plan) -> list[str]:
    """What the state holds for steps that the plan does not have, a line each."""
    known = plan.durable_names()
    return sorted(f"{name} ({what})" for name, what in _held(state) if name not in known)


def _changed_schema(state: EpochState, context: PlanContext) -> list[str]:
    """What the state holds for steps that keep it in another form now, a line each."""
    ringing = {timers.stage for timers in state.timers if timers.pending}
    return list(
        changed_schema(state.schemas, state_schemas(context), {name for name, _ in _held(state)}, ringing)
    )


def _starved_or_repeated(state: EpochState, plan: Plan) -> list[str]:
    """What would never get an element, or get again what it has had, a line each.

    An Impulse fires once in the life of a checkpoint, for the steps that it feeds then.
    """
    started, fed, new = state.fired_impulses, plan.fed_by_impulse(), pending_impulses(state, plan)
    if state.done or state.draining:
        return [f"{name}: the pipeline has ended or is being drained" for name in new]
    gone = {step: name for name in started.keys() - fed.keys() for step in started[name]}
    again = [
        f"{step}: {gone[step]} has fed it, and {name} would feed it again"
        for name in new
        for step in fed[name] & gone.keys()
    ]
    never = [
        f"{step}: {name} has fired before, and feeds it no more"
        for name in fed.keys() - set(new)
        for step in fed[name].difference(started[name])
    ]
    return sorted(again + never)


def _held(state: EpochState) -> set[tuple[str, str]]:
    """The names that the state holds anything for, and what."""
    named: dict[str, Iterable[str]] = {
        "residuals": (r.transform for r in state.residuals),
        "publications": (p.transform for p in state.publications),
        "state": (run.stage for run in state.state_runs),
        "timers": (t.stage for t in state.timers),
    }
    return {(name, what) for what, names in named.items() for name in names}
