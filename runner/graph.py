"""From Beam's pipeline proto to a plan: optimise, cut, lay out in levels. Runs on the driver only.

Beam's own translations fuse and lift; four phases of ours stand between them. `cut_reads` and
`cut_publications` end the epoch before a splittable DoFn and before a post-commit step (whatever
reaches them is carried by the commit record), `expand_reshuffles` makes a Reshuffle one exchange without
a grouping, and `drop_carried_reshuffles` takes away the one that only other runners need.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.portability.fn_api_runner import translations as beam_phases
from apache_beam.runners.worker import bundle_processor

from penstock.publish import CARRIED_RESHUFFLE, POST_COMMIT
from penstock.runner import plan as plans
from penstock.runner.checks import fires_once
from penstock.runner.plan import Edge, Origin, Plan, Routing, Side
from penstock.runner.views import group_views, original

SOURCE_URN = "penstock:source:v1"
SINK_URN = "penstock:sink:v1"
EMPTY_URN = "penstock:empty:v1"

_WRITE = bundle_processor.DATA_OUTPUT_URN
_READ = bundle_processor.DATA_INPUT_URN
_PAR_DO = common_urns.primitives.PAR_DO.urn
_GBK = common_urns.primitives.GROUP_BY_KEY.urn
_FLATTEN = common_urns.primitives.FLATTEN.urn
_RESHUFFLE = common_urns.composites.RESHUFFLE.urn
_SPLIT = common_urns.sdf_components.SPLIT_AND_SIZE_RESTRICTIONS.urn
_PROCESS = common_urns.sdf_components.PROCESS_SIZED_ELEMENTS_AND_RESTRICTIONS.urn
_TEST_STREAM = common_urns.primitives.TEST_STREAM.urn
_KNOWN_URNS = frozenset([_FLATTEN, _GBK, _RESHUFFLE, _TEST_STREAM])
_SCRIPT = "script"
_ROUTING = {
    "materialize": Routing.LOCAL,
    "spread": Routing.SPREAD,
    "group": Routing.GROUPED,
    "residual": Routing.RESIDUAL,
    "publish": Routing.PUBLISH,
}

Phase = Callable[[list[beam_phases.Stage], beam_phases.TransformContext], Iterable[beam_phases.Stage]]


def is_streaming(pipeline: api.Pipeline) -> bool:
    """Whether any PCollection of the pipeline is unbounded."""
    unbounded = api.IsBounded.UNBOUNDED
    return any(c.is_bounded == unbounded for c in pipeline.components.pcollections.values())


def build_plan(pipeline: api.Pipeline, *, streaming: bool) -> Plan:
    """Optimise a pipeline that `checks.refuse_unsupported` has let through, and lay it out in levels."""
    pipeline = _one_environment(pipeline)
    context, stages = beam_phases.create_and_optimize_stages(
        pipeline, _phases(streaming), known_runner_urns=_KNOWN_URNS
    )
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
    )


def _script(pipeline: api.Pipeline) -> bytes:
    transforms = pipeline.components.transforms.values()
    return next((t.spec.payload for t in transforms if t.spec.urn == _TEST_STREAM), b"")


def _phases(streaming: bool) -> list[Phase]:
    return [
        beam_phases.annotate_downstream_side_inputs,
        beam_phases.pack_combiners,
        beam_phases.lift_combiners,
        beam_phases.annotate_stateful_dofns_as_roots,
        beam_phases.read_to_impulse,
        expand_scripts,
        beam_phases.expand_sdf,
        only_splits_into_reshuffles,
        *([cut_reads] if streaming else []),
        drop_carried_reshuffles,
        cut_publications,
        *([group_views] if streaming else []),
        expand_reshuffles,
        beam_phases.expand_gbk,
        beam_phases.sink_flattens,
        beam_phases.greedily_fuse,
        beam_phases.impulse_to_input,
        beam_phases.sort_stages,
        empty_flattens,
        beam_phases.add_impulse_to_dangling_transforms,
    ]


def empty_flattens(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """A Flatten of nothing is started like an Impulse, and sends nothing."""
    for stage in stages:
        for transform in stage.transforms:
            if transform.spec.urn == _FLATTEN and not transform.inputs:
                transform.spec.urn = EMPTY_URN
        yield stage


def _one_environment(pipeline: api.Pipeline) -> api.Pipeline:
    """Resource hints give transforms environments of their own; here all run in one kind of worker."""
    copy = api.Pipeline()
    copy.CopyFrom(pipeline)
    used = [t.environment_id for t in copy.components.transforms.values() if t.environment_id]
    for transform in copy.components.transforms.values():
        if transform.environment_id:
            transform.environment_id = used[0]
    return copy


# Phases. Each takes and returns stages of one transform, before fusion.


def only_splits_into_reshuffles(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> list[beam_phases.Stage]:
    """Take side inputs from the Reshuffle that Beam puts into a splittable DoFn, with all inputs of the DoFn."""
    splits = {p for s in stages for t in s.transforms if t.spec.urn == _SPLIT for p in t.outputs.values()}
    for stage in stages:
        (transform,) = stage.transforms
        if transform.spec.urn == _RESHUFFLE and splits & set(transform.inputs.values()):
            for tag in [tag for tag, pcoll in transform.inputs.items() if pcoll not in splits]:
                del transform.inputs[tag]
    return stages


def cut_reads(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """End the epoch before each splittable DoFn; the Reshuffle that Beam puts there is not needed then."""
    by_output = {
        pcoll: s
        for s in stages
        for t in s.transforms
        if t.spec.urn == _RESHUFFLE
        for pcoll in t.outputs.values()
    }
    reads = [s for s in stages if s.transforms[0].spec.urn == _PROCESS]
    dropped = {id(by_output[pcoll]) for s in reads for pcoll in _main_inputs(s) if pcoll in by_output}
    for stage in stages:
        if id(stage) in dropped:
            continue
        if stage not in reads:
            yield stage
            continue
        (transform,) = stage.transforms
        (pcoll,) = _main_inputs(stage)
        source = by_output[pcoll].transforms[0] if pcoll in by_output else None
        written = next(iter(source.inputs.values())) if source else pcoll
        yield from _cut(stage, written, pcoll, "residual", step_name(transform), context)


def cut_publications(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """End the epoch before each transform with the post-commit mark."""
    for stage in stages:
        (transform,) = stage.transforms
        if POST_COMMIT not in transform.annotations or transform.spec.urn != _PAR_DO:
            yield stage
            continue
        (pcoll,) = _main_inputs(stage)
        carried = _copy_of(pcoll, context)
        for tag, name in list(transform.inputs.items()):
            if name == pcoll:
                transform.inputs[tag] = carried
        yield from _cut(stage, pcoll, carried, "publish", transform.unique_name, context)


def drop_carried_reshuffles(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """Remove the Reshuffle before a post-commit step: the commit record carries those elements."""
    stands_for = {}
    for stage in stages:
        (transform,) = stage.transforms
        if CARRIED_RESHUFFLE in transform.annotations and transform.spec.urn == _RESHUFFLE:
            (given,), (made,) = transform.inputs.values(), transform.outputs.values()
            stands_for[made] = given
    for stage in stages:
        (transform,) = stage.transforms
        if any(made in stands_for for made in transform.outputs.values()):
            continue
        for tag, pcoll in list(transform.inputs.items()):
            transform.inputs[tag] = stands_for.get(pcoll, pcoll)
        yield stage


def expand_scripts(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """Read each output of a TestStream from a buffer of its own, which the driver fills."""
    for stage in stages:
        (transform,) = stage.transforms
        if transform.spec.urn != _TEST_STREAM:
            yield stage
            continue
        for tag, made in transform.outputs.items():
            name = f"{transform.unique_name}/{tag}"
            buffer = beam_phases.create_buffer_id(name, kind=_SCRIPT)
            yield beam_phases.Stage(
                f"{name}/Read",
                [_end(f"{name}/Read", _READ, buffer, outputs={"out": made})],
                downstream_side_inputs=stage.downstream_side_inputs,
                must_follow=frozenset(),
            )


def expand_reshuffles(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """Turn each Reshuffle into a write and a read of one exchange: windows, timestamps and panes stay."""
    for stage in stages:
        (transform,) = stage.transforms
        if transform.spec.urn != _RESHUFFLE:
            yield stage
            continue
        (given,), (made,) = transform.inputs.values(), transform.outputs.values()
        _share_coder(given, made, context)
        yield from _write_and_read(transform.unique_name, given, made, "spread", stage)


def _share_coder(given: str, made: str, context: beam_phases.TransformContext) -> None:
    """Both ends of a Reshuffle encode alike: as pairs, if a GroupByKey below has made the untyped output one."""
    coders, ends = context.components.coders, context.components.pcollections
    pairs = [coders[ends[end].coder_id].spec.urn == common_urns.coders.KV.urn for end in (given, made)]
    if pairs == [False, True]:
        ends[given].coder_id = ends[made].coder_id
    else:
        ends[made].coder_id = ends[given].coder_id


def _cut(
    stage: beam_phases.Stage,
    written: str,
    read: str,
    kind: str,
    step: str,
    context: beam_phases.TransformContext,
) -> Iterator[beam_phases.Stage]:
    write, source = _write_and_read(step, written, read, kind, stage)
    write.must_follow = frozenset()
    stage.must_follow = stage.must_follow | frozenset([write])
    yield write
    yield source
    yield stage


def _write_and_read(
    name: str, written: str, read: str, kind: str, like: beam_phases.Stage
) -> tuple[beam_phases.Stage, beam_phases.Stage]:
    buffer = beam_phases.create_buffer_id(name, kind=kind)
    write = beam_phases.Stage(
        f"{name}/Write {kind}",
        [_end(f"{name}/Write {kind}", _WRITE, buffer, inputs={"in": written})],
        downstream_side_inputs=frozenset(),
        must_follow=like.must_follow,
    )
    source = beam_phases.Stage(
        f"{name}/Read {kind}",
        [_end(f"{name}/Read {kind}", _READ, buffer, outputs={"out": read})],
        downstream_side_inputs=like.downstream_side_inputs,
        must_follow=frozenset([write]) | like.must_follow,
    )
    return write, source


def _end(
    name: str,
    urn: str,
    buffer: bytes,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
) -> api.PTransform:
    spec = api.FunctionSpec(urn=urn, payload=buffer)
    return api.PTransform(unique_name=name, spec=spec, inputs=inputs, outputs=outputs)


def _copy_of(pcoll: str, context: beam_phases.TransformContext) -> str:
    collections_ = context.components.pcollections
    name = beam_phases.unique_name(collections_, pcoll + "_carried")
    collections_[name].CopyFrom(collections_[pcoll])
    collections_[name].unique_name = name
    return name


def _main_inputs(stage: beam_phases.Stage) -> list[str]:
    (transform,) = stage.transforms
    sides = set(beam_phases.side_inputs(transform))
    return [pcoll for tag, pcoll in transform.inputs.items() if tag not in sides]


def step_name(transform: api.PTransform) -> str:
    """The user's name of a splittable DoFn, which Beam expands into several transforms."""
    return str(transform.unique_name).removesuffix("/Process")


# From fused stages to edges and levels.


def _edges(
    stages: list[beam_phases.Stage], components: api.Components, *, streaming: bool
) -> tuple[list[Edge], dict[bytes, list[int]]]:
    writers: dict[bytes, list[int]] = collections.defaultdict(list)
    for index, stage in enumerate(stages):
        for transform in stage.transforms:
            if transform.spec.urn == _WRITE:
                writers[transform.spec.payload].append(index)
    edges: list[Edge] = []
    wiring: dict[bytes, list[int]] = collections.defaultdict(list)
    for consumer, stage in enumerate(stages):
        source = _source_of(stage)
        buffer = source.spec.payload
        if buffer == beam_phases.IMPULSE_BUFFER:
            continue
        kind, name = beam_phases.split_buffer_id(buffer)
        if kind == _SCRIPT:
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
                apart=streaming and _at_earliest_or_latest(collection, components),
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


def _levels(count: int, edges: list[Edge]) -> list[int]:
    """The level of each stage; stages come in topological order."""
    levels = [0] * count
    for stage in range(count):
        for edge in edges:
            if edge.consumer == stage and not edge.routing.carried:
                levels[stage] = max(levels[stage], _level_of(edge, levels))
    return levels


def _level_of(edge: Edge, levels: list[int]) -> int:
    return max((levels[p] for p in edge.producers), default=0) + (not edge.routing.stays)


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
    process = next((t for t in stage.transforms if t.spec.urn == _PROCESS), None)
    grouped = next((e for e in inputs if _groups(source)), None)
    stateful = _stateful(stage)
    outputs: list[int] = []
    transforms = {}
    for transform in stage.transforms:
        if transform.spec.urn == _WRITE:
            targets = wiring.get(transform.spec.payload, [])
            outputs.extend(targets)
            spec = api.FunctionSpec(urn=SINK_URN, payload=json.dumps(targets).encode())
        elif transform.spec.urn == _READ:
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


def _groups(source: api.PTransform) -> bool:
    """Whether a stage begins with the reading half of a GroupByKey."""
    buffer = source.spec.payload
    return buffer != beam_phases.IMPULSE_BUFFER and beam_phases.split_buffer_id(buffer)[0] == "group"


def _triggered(collection: str, components: api.Components) -> bool:
    return not fires_once(_strategy(collection, components).trigger)


def _at_earliest_or_latest(collection: str, components: api.Components) -> bool:
    """Whether the timestamps of elements decide about the timestamp of what a grouping makes of them."""
    return _strategy(collection, components).output_time != api.OutputTime.END_OF_WINDOW


def _strategy(collection: str, components: api.Components) -> api.WindowingStrategy:
    return components.windowing_strategies[components.pcollections[collection].windowing_strategy_id]


def _descriptor_name(transform: api.PTransform, stage: beam_phases.Stage) -> str:
    """The unique name, but for a read that Beam named like the transform it stands for (Impulse)."""
    twins = [t for t in stage.transforms if t.unique_name == transform.unique_name]
    if transform.spec.urn == _READ and len(twins) > 1:
        return str(transform.unique_name) + "/Read"
    return str(transform.unique_name)


def _origin(source: api.PTransform, inputs: tuple[Edge, ...]) -> Origin:
    if source.spec.payload == beam_phases.IMPULSE_BUFFER:
        return Origin.IMPULSE
    if not inputs:
        return Origin.SCRIPT
    routing = inputs[0].routing
    if routing is Routing.RESIDUAL:
        return Origin.RESIDUAL
    return Origin.PUBLISH if routing is Routing.PUBLISH else Origin.EDGE


def _step(source: api.PTransform, origin: Origin, inputs: tuple[Edge, ...]) -> str:
    if origin is Origin.IMPULSE:
        return str(source.unique_name)
    if origin is Origin.SCRIPT:
        return str(beam_phases.split_buffer_id(source.spec.payload)[1])
    return "" if origin is Origin.EDGE else inputs[0].name


def _source_of(stage: beam_phases.Stage) -> api.PTransform:
    (source,) = (t for t in stage.transforms if t.spec.urn == _READ)
    return source


def _stateful(stage: beam_phases.Stage) -> api.PTransform | None:
    for transform in stage.transforms:
        if transform.spec.urn == _PAR_DO:
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
