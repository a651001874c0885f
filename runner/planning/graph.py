"""From Beam's pipeline proto to a plan: optimise, cut (`phases.py`), lay out in levels. Runs on the driver only."""

from __future__ import annotations

import collections
import dataclasses
import graphlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.portability.fn_api_runner import translations as beam_phases

from penstock.runner.planning import plan as plans
from penstock.runner.planning.checks import fires_once
from penstock.runner.planning.phases import (
    KNOWN_URNS,
    PAR_DO,
    PROCESS,
    READ,
    SCRIPT,
    TEST_STREAM,
    WRITE,
    phases,
    stamped_by_elements,
    strategy_of,
)
from penstock.runner.planning.plan import Edge, Origin, Plan, Routing, Side
from penstock.runner.planning.program import of_driver
from penstock.runner.planning.views import original

SOURCE_URN = "penstock:source:v1"
SINK_URN = "penstock:sink:v1"

_ROUTING = {
    "materialize": Routing.LOCAL,
    "spread": Routing.ROUND_ROBIN,
    "group": Routing.GROUPED,
    "residual": Routing.RESIDUAL,
    "publish": Routing.PUBLISH,
}


def is_streaming(pipeline: api.Pipeline) -> bool:
    """Whether any PCollection of the pipeline is unbounded."""
    unbounded = api.IsBounded.UNBOUNDED
    return any(c.is_bounded == unbounded for c in pipeline.components.pcollections.values())


def build_plan(pipeline: api.Pipeline, *, streaming: bool) -> Plan:
    """Optimise a pipeline that `checks.refuse_unsupported` has let through, and lay it out in levels."""
    pipeline = _one_environment(pipeline)
    context, stages = beam_phases.create_and_optimize_stages(
        pipeline, phases(streaming=streaming), known_runner_urns=KNOWN_URNS
    )
    stages = _in_order(stages, _edges(stages, context.components, streaming=streaming)[0])
    edges, wiring = _edges(stages, context.components, streaming=streaming)
    levels = _levels(len(stages), edges)
    placed = tuple(_placed(edge, levels) for edge in edges)
    built = tuple(
        _stage(index, stage, levels[index], placed, wiring, context.components)
        for index, stage in enumerate(stages)
    )
    return Plan(
        id=uuid.uuid4().hex,
        components=_shared_components(context.components),
        stages=built,
        edges=placed,
        streaming=streaming,
        script=_script(pipeline),
        program=of_driver(),
    )


def _script(pipeline: api.Pipeline) -> bytes:
    transforms = pipeline.components.transforms.values()
    return next((t.spec.payload for t in transforms if t.spec.urn == TEST_STREAM), b"")


def _one_environment(pipeline: api.Pipeline) -> api.Pipeline:
    """Resource hints give transforms environments of their own; here all run in one kind of worker."""
    copy = api.Pipeline()
    copy.CopyFrom(pipeline)
    used = [t.environment_id for t in copy.components.transforms.values() if t.environment_id]
    for transform in copy.components.transforms.values():
        if transform.environment_id:
            transform.environment_id = used[0]
    return copy


# From fused stages to edges and levels.


def _edges(
    stages: list[beam_phases.Stage], components: api.Components, *, streaming: bool
) -> tuple[list[Edge], dict[bytes, list[int]]]:
    writers: dict[bytes, list[int]] = collections.defaultdict(list)
    for index, stage in enumerate(stages):
        for transform in stage.transforms:
            if transform.spec.urn == WRITE:
                writers[transform.spec.payload].append(index)
    edges: list[Edge] = []
    wiring: dict[bytes, list[int]] = collections.defaultdict(list)
    for consumer, stage in enumerate(stages):
        source = _source_of(stage)
        buffer = source.spec.payload
        if buffer == beam_phases.IMPULSE_BUFFER:
            continue
        kind, name = beam_phases.split_buffer_id(buffer)
        if kind == SCRIPT:
            continue
        routing = _ROUTING[kind]
        if routing is Routing.LOCAL and _stateful(stage):
            routing = Routing.KEYED
        (read,) = source.outputs.values()
        collection = read
        if routing is Routing.GROUPED:
            (collection,) = components.transforms[name].inputs.values()
            if _triggered(collection, components) and not streaming:
                routing = Routing.KEYED
        wiring[buffer].append(len(edges))
        edges.append(
            Edge(
                index=len(edges),
                name=name if routing.carried else stage.name,
                collection=collection,
                routing=routing,
                level=0,
                producers=tuple(sorted(set(writers[buffer]))),
                consumer=consumer,
                one_timestamp_per_group=streaming and stamped_by_elements(collection, components),
            )
        )
    for consumer, stage in enumerate(stages):
        for pcoll, side in _sides(stage):
            buffer = beam_phases.create_buffer_id(pcoll)
            wiring[buffer].append(len(edges))
            producers = tuple(sorted(set(writers[buffer])))
            routing = Routing.BROADCAST
            edges.append(Edge(len(edges), stage.name, pcoll, routing, 0, producers, consumer, side))
    return edges, wiring


def _sides(stage: beam_phases.Stage) -> Iterator[tuple[str, Side]]:
    """The side inputs of a stage, with the PCollections that come in for them."""
    for transform in stage.transforms:
        tags = beam_phases.side_inputs(transform)
        if tags:
            payload = api.ParDoPayload.FromString(transform.spec.payload)
            for tag, pcoll in sorted(tags.items()):
                proto = payload.side_inputs[tag]
                yield (
                    pcoll,
                    Side(
                        transform=_descriptor_name(transform, stage),
                        tag=tag,
                        keyed=proto.access_pattern.urn == common_urns.side_inputs.MULTIMAP.urn,
                        elements=original(pcoll),
                        state=f"{transform.unique_name}/{tag}",
                        mapping=proto.window_mapping_fn.payload,
                    ),
                )


def _in_order(stages: list[beam_phases.Stage], edges: list[Edge]) -> list[beam_phases.Stage]:
    """The stages, each behind those that feed it; Beam's order forgets some that make side inputs."""
    feeding: dict[int, set[int]] = {index: set() for index in range(len(stages))}
    for edge in edges:
        if not edge.routing.carried:
            feeding[edge.consumer].update(edge.producers)
    return [stages[index] for index in graphlib.TopologicalSorter(feeding).static_order()]


def _levels(count: int, edges: list[Edge]) -> list[int]:
    """The level of each stage; stages come in topological order."""
    levels = [0] * count
    for stage in range(count):
        for edge in edges:
            if edge.consumer == stage and not edge.routing.carried:
                levels[stage] = max(levels[stage], _level_of(edge, levels))
    return levels


def _level_of(edge: Edge, levels: list[int]) -> int:
    return max((levels[p] for p in edge.producers), default=0) + (not edge.routing.is_local)


def _placed(edge: Edge, levels: list[int]) -> Edge:
    level = _level_of(edge, levels) if edge.routing.carried else levels[edge.consumer]
    return dataclasses.replace(edge, level=level)


def _stage(
    index: int,
    stage: beam_phases.Stage,
    level: int,
    edges: tuple[Edge, ...],
    wiring: Mapping[bytes, list[int]],
    components: api.Components,
) -> plans.Stage:
    source = _source_of(stage)
    sides = tuple(e.index for e in edges if e.consumer == index and e.side)
    inputs = tuple(e for e in edges if e.consumer == index and not e.side)
    origin = _origin(source, inputs)
    process = next((t for t in stage.transforms if t.spec.urn == PROCESS), None)
    grouped = next((e for e in inputs if _groups(source)), None)
    stateful = _stateful(stage)
    outputs: list[int] = []
    transforms = {}
    for transform in _in_order_of_data(stage.transforms):
        if transform.spec.urn == WRITE:
            targets = wiring.get(transform.spec.payload, [])
            outputs.extend(targets)
            spec = api.FunctionSpec(urn=SINK_URN, payload=json.dumps(targets).encode())
        elif transform.spec.urn == READ:
            spec = api.FunctionSpec(urn=SOURCE_URN)
        else:
            spec = transform.spec
        made = api.PTransform()
        made.CopyFrom(transform)
        made.spec.CopyFrom(spec)
        for tag, pcoll in beam_phases.side_inputs(transform).items():
            made.inputs[tag] = original(pcoll)
        del made.subtransforms[:]
        transforms[_descriptor_name(transform, stage)] = made.SerializeToString()
    return plans.Stage(
        index=index,
        name=stage.name,
        level=level,
        origin=origin,
        source=_descriptor_name(source, stage),
        collection=inputs[0].collection if inputs else next(iter(source.outputs.values())),
        transforms=transforms,
        inputs=tuple(e.index for e in inputs),
        outputs=tuple(outputs),
        sides=sides,
        step=_step(source, origin, inputs),
        reads=process.unique_name if process is not None else "",
        state=_state_name(source, grouped, stateful, components),
        grouped=grouped.collection if grouped else "",
        triggered=grouped is not None and grouped.routing is Routing.KEYED,
        waiting=next((f"{side.transform}/waiting" for e in sides if (side := edges[e].side)), ""),
    )


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


def _groups(source: api.PTransform) -> bool:
    """Whether a stage begins with the reading half of a GroupByKey."""
    buffer = source.spec.payload
    return buffer != beam_phases.IMPULSE_BUFFER and beam_phases.split_buffer_id(buffer)[0] == "group"


def _triggered(collection: str, components: api.Components) -> bool:
    return not fires_once(strategy_of(collection, components).trigger)


def _descriptor_name(transform: api.PTransform, stage: beam_phases.Stage) -> str:
    """The unique name, but for a read that Beam named like the transform it stands for (Impulse)."""
    twins = [t for t in stage.transforms if t.unique_name == transform.unique_name]
    if transform.spec.urn == READ and len(twins) > 1:
        return str(transform.unique_name) + "/Read"
    return str(transform.unique_name)


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
        return str(beam_phases.split_buffer_id(source.spec.payload)[1])
    return "" if origin is Origin.EDGE else inputs[0].name


def _source_of(stage: beam_phases.Stage) -> api.PTransform:
    (source,) = (t for t in stage.transforms if t.spec.urn == READ)
    return source


def _stateful(stage: beam_phases.Stage) -> api.PTransform | None:
    for transform in stage.transforms:
        if transform.spec.urn == PAR_DO:
            payload = api.ParDoPayload.FromString(transform.spec.payload)
            if payload.state_specs or payload.timer_family_specs:
                return transform
    return None


def _state_name(
    source: api.PTransform,
    grouped: Edge | None,
    stateful: api.PTransform | None,
    components: api.Components,
) -> str:
    if stateful is not None:
        return str(stateful.unique_name)
    if grouped is not None:
        _, name = beam_phases.split_buffer_id(source.spec.payload)
        return str(components.transforms[name].unique_name)
    return ""


def _shared_components(components: api.Components) -> bytes:
    shared = api.Components()
    shared.CopyFrom(components)
    shared.transforms.clear()
    return bytes(shared.SerializeToString(deterministic=True))
