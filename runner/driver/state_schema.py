"""In which form each step keeps what a checkpoint holds for it: its coders, kinds of state, timers and windows.

A checkpoint outlives the program that wrote it. Bytes that another coder wrote may still decode, to other values;
state under a key that is encoded otherwise is never found again. So the record says how each step keeps things,
and a pipeline that would keep them in another way is refused.

A form is words, for comparing and for people. Coders are named by their classes alone: what is inside a pickled
coder differs from run to run, and a row may get new fields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from apache_beam import coders
from apache_beam.portability.api import beam_runner_api_pb2 as api

from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Stage

StepSchema = Mapping[str, str]
"""For each part of what a step keeps, the words that say how."""

_TIMER = "timer"
_FAMILY = "ts-"
"""What Beam puts before the name of a timer."""


def state_schemas(context: PlanContext) -> dict[str, StepSchema]:
    """The form of everything that the steps of a plan may keep in a checkpoint, by durable name."""
    found: dict[str, StepSchema] = {}
    for stage in context.plan.stages:
        if stage.state:
            found[stage.state] = dict(_state(context, stage))
        if stage.waiting:
            found[stage.waiting] = _elements(context, stage.collection)
    for edge in context.plan.edges:
        if edge.routing.carried:
            found[edge.name] = _elements(context, edge.collection)
        elif edge.side:
            found[edge.side.state] = _elements(context, edge.collection)
    return found


def changed_schema(
    before: Mapping[str, StepSchema],
    after: Mapping[str, StepSchema],
    holding: Collection[str],
    ringing: Collection[str],
) -> Iterator[str]:
    """Say how names that hold something would be read otherwise than they were written, a line each.

    `holding` are the names that hold anything, `ringing` those whose timers are set. A state that is gone may be
    left behind; a timer may not, since it fires.
    """
    for name in sorted(holding):
        was, now = before.get(name, {}), after.get(name, {})
        for part in sorted(was.keys() & now.keys()):
            if was[part] != now[part]:
                yield f"{name}: {part}: {was[part]} wrote it, {now[part]} would read it"
        for part in sorted(was.keys() - now.keys()):
            if name in ringing and part.startswith(_TIMER):
                yield f"{name}: {part} is set, and nobody would hear it"


def _elements(context: PlanContext, collection: str) -> StepSchema:
    coder = context.coder(collection)
    return {
        "elements": _named(coder.wrapped_value_coder),
        "windows": _windows(context, collection),
    }


def _state(context: PlanContext, stage: Stage) -> Iterator[tuple[str, str]]:
    collection = stage.grouped or stage.collection
    pair = context.coder(collection).wrapped_value_coder
    yield "step", "grouping" if stage.grouped else "stateful DoFn"
    yield "keys", _named(pair.key_coder())
    yield "windows", _windows(context, collection)
    if stage.grouped:
        yield "values", _named(pair.value_coder())
    for data in stage.transforms.values():
        transform = api.PTransform.FromString(data)
        if transform.unique_name == stage.state and transform.spec.payload and not stage.grouped:
            payload = api.ParDoPayload.FromString(transform.spec.payload)
            for name, spec in payload.state_specs.items():
                yield f"state {name!r}", _spec(context, spec)
            for family, timer in payload.timer_family_specs.items():
                yield (
                    f"{_TIMER} {family.removeprefix(_FAMILY)!r}",
                    api.TimeDomain.Enum.Name(timer.time_domain),
                )


def _spec(context: PlanContext, spec: api.StateSpec) -> str:
    """The kind of a state and its coder, as "bag of VarIntCoder"."""
    kind = spec.WhichOneof("spec")
    ids = [value for field, value in getattr(spec, kind).ListFields() if field.name.endswith("coder_id")]
    kinds = kind.removesuffix("_spec").replace("_", " ")
    return " of ".join([kinds, *(_named(context.coder_by_id(each)) for each in ids)])


def _windows(context: PlanContext, collection: str) -> str:
    merging = "merging " if context.windowing(collection).windowfn.is_merging() else ""
    return merging + _named(context.coder(collection).window_coder)


def _named(coder: coders.Coder) -> str:
    parts: list[Any] = list(coder._get_component_coders())
    inner = f"[{', '.join(_named(part) for part in parts)}]" if parts else ""
    return type(coder).__name__ + inner
