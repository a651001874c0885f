"""Builds a plan from Beam's pipeline proto: first the phases (`phases.py`), then edges and levels (`edges.py`), stages.

Runs on the driver only.
"""

from __future__ import annotations

import graphlib
import json
import uuid
from collections.abc import Sequence

from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.portability.fn_api_runner import translations as beam_phases

from penstock.runner.planning import plan as plans
from penstock.runner.planning.edges import (
    Wiring,
    buffer_of,
    descriptor_name,
    make_edges,
    sort_stages,
    source_of,
    stage_levels,
    stateful_transform,
    with_level,
)
from penstock.runner.planning.phases import KNOWN_URNS, PROCESS, TEST_STREAM, phases
from penstock.runner.planning.plan import Edge, GroupSpec, Origin, Plan, Routing
from penstock.runner.planning.program import program_of_driver
from penstock.runner.planning.urns import READ, SINK_URN, SOURCE_URN, WRITE, BufferKind
from penstock.runner.planning.views import original_collection


def is_streaming(pipeline: api.Pipeline) -> bool:
    """Whether any PCollection of the pipeline is unbounded."""
    unbounded = api.IsBounded.UNBOUNDED
    return any(c.is_bounded == unbounded for c in pipeline.components.pcollections.values())


def build_plan(pipeline: api.Pipeline, *, streaming: bool) -> Plan:
    """Return the plan of a pipeline that `checks.refuse_unsupported` has accepted."""
    pipeline = _one_environment(pipeline)
    context, stages = beam_phases.create_and_optimize_stages(
        pipeline, phases(streaming=streaming), known_runner_urns=KNOWN_URNS
    )
    # Edges name stages by index, so they are made again once the stages are in order.
    stages = sort_stages(stages, make_edges(stages, context.components, streaming=streaming)[0])
    unplaced, wiring = make_edges(stages, context.components, streaming=streaming)
    levels = stage_levels(len(stages), unplaced)
    edges = tuple(with_level(edge, levels) for edge in unplaced)
    built = tuple(
        _stage(index, stage, levels[index], edges, wiring, context.components)
        for index, stage in enumerate(stages)
    )
    return Plan(
        # The key of the plan in the workers' caches. Two builds of one pipeline are two plans, because their DoFns are
        # pickled separately.
        id=uuid.uuid4().hex,
        components=_shared_components(context.components),
        stages=built,
        edges=edges,
        streaming=streaming,
        script=_script(pipeline),
        program=program_of_driver(),
    )


def _script(pipeline: api.Pipeline) -> bytes:
    transforms = pipeline.components.transforms.values()
    return next((t.spec.payload for t in transforms if t.spec.urn == TEST_STREAM), b"")


def _one_environment(pipeline: api.Pipeline) -> api.Pipeline:
    """Give all transforms one environment, because Beam fuses only within one. Resource hints cause several."""
    copy = api.Pipeline()
    copy.CopyFrom(pipeline)
    used = [t.environment_id for t in copy.components.transforms.values() if t.environment_id]
    for transform in copy.components.transforms.values():
        # Spark's executors have one environment; hints for resources have no effect here.
        if transform.environment_id:
            transform.environment_id = used[0]
    return copy


# From fused stages to the stages of the plan.


def _stage(
    index: int,
    stage: beam_phases.Stage,
    level: int,
    edges: tuple[Edge, ...],
    wiring: Wiring,
    components: api.Components,
) -> plans.Stage:
    source = source_of(stage)
    inputs = tuple(e for e in edges if e.consumer == index and not e.side)
    sides = [e for e in edges if e.consumer == index and e.side]
    origin = _origin(source, inputs)
    process = next((t for t in stage.transforms if t.spec.urn == PROCESS), None)
    return plans.Stage(
        index=index,
        name=stage.name,
        level=level,
        origin=origin,
        source=descriptor_name(source, stage),
        collection=inputs[0].collection if inputs else next(iter(source.outputs.values())),
        transforms=_descriptor_transforms(stage, wiring),
        inputs=tuple(e.index for e in inputs),
        outputs=tuple(e for t in stage.transforms if t.spec.urn == WRITE for e in _targets(t, wiring)),
        sides=tuple(e.index for e in sides),
        step=_step(source, origin, inputs),
        reads=process.unique_name if process is not None else "",
        state=_state_name(stage, components),
        group=_group(source, inputs),
        waiting=next((f"{e.side.transform}/waiting" for e in sides if e.side), ""),
    )


def _descriptor_transforms(stage: beam_phases.Stage, wiring: Wiring) -> dict[str, bytes]:
    """The transforms of a stage as a worker's bundle descriptor needs them, serialized, by unique name."""
    transforms = {}
    for transform in _in_order_of_data(stage.transforms):
        made = api.PTransform()
        made.CopyFrom(transform)
        # Beam's operations at the ends of a stage use its data plane. Ours use the exchange: see
        # `harness/operations.py`.
        if transform.spec.urn == WRITE:
            payload = json.dumps(_targets(transform, wiring)).encode()
            made.spec.CopyFrom(api.FunctionSpec(urn=SINK_URN, payload=payload))
        elif transform.spec.urn == READ:
            made.spec.CopyFrom(api.FunctionSpec(urn=SOURCE_URN))
        # In a stream a side input arrives as panes. The DoFn must see the PCollection that the user gave it.
        for tag, pcoll in beam_phases.side_inputs(transform).items():
            made.inputs[tag] = original_collection(pcoll)
        # A splittable DoFn keeps the composite's parts, which are in other stages.
        del made.subtransforms[:]
        transforms[descriptor_name(transform, stage)] = made.SerializeToString()
    return transforms


def _targets(write: api.PTransform, wiring: Wiring) -> list[int]:
    return wiring.get(write.spec.payload, [])


def _group(source: api.PTransform, inputs: tuple[Edge, ...]) -> GroupSpec | None:
    """The grouping that a stage begins with, if its source is the reading half of a GroupByKey."""
    buffer = source.spec.payload
    if buffer == beam_phases.IMPULSE_BUFFER or buffer_of(buffer)[0] is not BufferKind.GROUP:
        return None
    (edge,) = inputs
    return GroupSpec(edge.collection, triggered=edge.routing is Routing.KEYED)


def _in_order_of_data(transforms: Sequence[api.PTransform]) -> list[api.PTransform]:
    """Return the transforms of a stage so that each one follows its producers; messages list them in that order.

    Beam's fusion appends transforms in the order in which it visits edges.
    """
    producer = {pcoll: index for index, each in enumerate(transforms) for pcoll in each.outputs.values()}
    order = graphlib.TopologicalSorter(
        {
            index: [producer[pcoll] for pcoll in each.inputs.values() if producer.get(pcoll, index) != index]
            for index, each in enumerate(transforms)
        }
    )
    return [transforms[index] for index in order.static_order()]


def _origin(source: api.PTransform, inputs: tuple[Edge, ...]) -> Origin:
    if source.spec.payload == beam_phases.IMPULSE_BUFFER:
        return Origin.IMPULSE
    if not inputs:
        return Origin.TEST_STREAM
    routing = inputs[0].routing
    if routing is Routing.RESIDUAL:
        return Origin.RESIDUAL
    return Origin.PUBLISH if routing is Routing.PUBLISH else Origin.EDGE


def _step(source: api.PTransform, origin: Origin, inputs: tuple[Edge, ...]) -> str:
    if origin is Origin.IMPULSE:
        return str(source.unique_name)
    if origin is Origin.TEST_STREAM:
        return buffer_of(source.spec.payload)[1]
    return "" if origin is Origin.EDGE else inputs[0].name


def _state_name(stage: beam_phases.Stage, components: api.Components) -> str:
    """The name of a stage's stateful DoFn or GroupByKey, under which its state is stored; empty if it has none."""
    stateful = stateful_transform(stage)
    if stateful is not None:
        return str(stateful.unique_name)
    buffer = source_of(stage).spec.payload
    if buffer == beam_phases.IMPULSE_BUFFER:
        return ""
    kind, name = buffer_of(buffer)
    return str(components.transforms[name].unique_name) if kind is BufferKind.GROUP else ""


def _shared_components(components: api.Components) -> bytes:
    shared = api.Components()
    shared.CopyFrom(components)
    shared.transforms.clear()
    return bytes(shared.SerializeToString(deterministic=True))
