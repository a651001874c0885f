"""The schema of each step's state in a checkpoint: coders, kinds of state, timers and windows.

A checkpoint outlives the program that wrote it. Bytes written by one coder may decode with another coder, but to
other values; state under a key that is now encoded differently is never found again. So the record stores the
schema of each step, and a pipeline with another schema is rejected.

A schema is text, so that it can be compared and shown in messages. It names coders by their classes only: the content
of a pickled coder differs from run to run, and a row type may get new fields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from apache_beam import coders
from apache_beam.portability.api import beam_runner_api_pb2 as api

from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Stage

StepSchema = Mapping[str, str]
"""For each part of a step's state ("keys", "windows", "state 'count'"), the text that describes its encoding."""

_TIMER = "timer"
_FAMILY_PREFIX = "ts-"
"""Beam puts this before the name of a timer (`userstate.TimerSpec`, read in Beam 2.77)."""


def state_schemas(context: PlanContext) -> dict[str, StepSchema]:
    """Return the schema of everything that the steps of a plan may store in a checkpoint, by durable name."""
    schemas: dict[str, StepSchema] = {}
    for stage in context.plan.stages:
        if stage.state:
            schemas[stage.state] = dict(_stateful_step(context, stage))
        if stage.waiting:
            schemas[stage.waiting] = _elements(context, stage.collection)
    for edge in context.plan.edges:
        if edge.routing.carried:
            schemas[edge.name] = _elements(context, edge.collection)
        elif edge.side:
            schemas[edge.side.state] = _elements(context, edge.collection)
    return schemas


def changed_schema(
    before: Mapping[str, StepSchema],
    after: Mapping[str, StepSchema],
    with_state: Collection[str],
    with_timers: Collection[str],
) -> Iterator[str]:
    """Yield one line for each part of stored state that would be decoded differently.

    `with_state` are the names that have stored state, `with_timers` those that have timers set. A state that the
    step no longer declares may stay unread; a timer may not, since it fires.
    """
    for name in sorted(with_state):
        old, new = before.get(name, {}), after.get(name, {})
        # A part that is only in the new schema has no stored state yet, so it cannot be decoded wrongly.
        for part in sorted(old.keys() & new.keys()):
            if old[part] != new[part]:
                yield f"{name}: {part}: written by {old[part]}, would be read by {new[part]}"
        for part in sorted(old.keys() - new.keys()):
            if name in with_timers and part.startswith(_TIMER):
                yield f"{name}: {part} is set, and the step no longer has a callback for it"


def _elements(context: PlanContext, collection: str) -> StepSchema:
    coder = context.coder(collection)
    return {
        "elements": _coder_name(coder.wrapped_value_coder),
        "windows": _windows(context, collection),
    }


def _stateful_step(context: PlanContext, stage: Stage) -> Iterator[tuple[str, str]]:
    collection = stage.group.collection if stage.group else stage.collection
    pair = context.coder(collection).wrapped_value_coder
    yield "step", "grouping" if stage.group else "stateful DoFn"
    yield "keys", _coder_name(pair.key_coder())
    yield "windows", _windows(context, collection)
    if stage.group:
        yield "values", _coder_name(pair.value_coder())
    for data in stage.transforms.values():
        transform = api.PTransform.FromString(data)
        if transform.unique_name == stage.state and transform.spec.payload and not stage.group:
            payload = api.ParDoPayload.FromString(transform.spec.payload)
            for name, spec in payload.state_specs.items():
                yield f"state {name!r}", _state_spec(context, spec)
            for family, timer in payload.timer_family_specs.items():
                yield (
                    f"{_TIMER} {family.removeprefix(_FAMILY_PREFIX)!r}",
                    api.TimeDomain.Enum.Name(timer.time_domain),
                )


def _state_spec(context: PlanContext, spec: api.StateSpec) -> str:
    """The kind of a state and its coders, for example "bag of VarIntCoder"."""
    kind = spec.WhichOneof("spec")
    ids = [value for field, value in getattr(spec, kind).ListFields() if field.name.endswith("coder_id")]
    words = kind.removesuffix("_spec").replace("_", " ")
    return " of ".join([words, *(_coder_name(context.coder_by_id(each)) for each in ids)])


def _windows(context: PlanContext, collection: str) -> str:
    merging = "merging " if context.windowing(collection).windowfn.is_merging() else ""
    return merging + _coder_name(context.coder(collection).window_coder)


def _coder_name(coder: coders.Coder) -> str:
    # Beam has no public access to the coders inside a coder.
    parts: list[Any] = list(coder._get_component_coders())
    inner = f"[{', '.join(_coder_name(part) for part in parts)}]" if parts else ""
    return type(coder).__name__ + inner
