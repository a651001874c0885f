"""Derives from Beam's fused stages the edges between them, and the order and the levels in which the stages run."""

from __future__ import annotations

import collections
import dataclasses
import graphlib
from collections.abc import Iterator, Mapping, Sequence

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.portability.fn_api_runner import translations as beam_phases

from penstock.runner.planning.checks import fires_once
from penstock.runner.planning.phases import PAR_DO, stamped_by_elements, strategy_of
from penstock.runner.planning.plan import Edge, Routing, SideInputSpec
from penstock.runner.planning.urns import READ, WRITE, BufferKind
from penstock.runner.planning.views import original_collection

Wiring = Mapping[bytes, list[int]]
"""The edges (by index) that each of Beam's buffers feeds."""

_ROUTING = {
    BufferKind.MATERIALIZE: Routing.LOCAL,
    BufferKind.RESHUFFLE: Routing.ROUND_ROBIN,
    BufferKind.GROUP: Routing.GROUPED,
    BufferKind.RESIDUAL: Routing.RESIDUAL,
    BufferKind.PUBLISH: Routing.PUBLISH,
}


def make_edges(
    stages: Sequence[beam_phases.Stage], components: api.Components, *, streaming: bool
) -> tuple[list[Edge], Wiring]:
    """Return all edges, still without their levels: main inputs first, then side inputs."""
    writers = _writers(stages)
    wiring: dict[bytes, list[int]] = collections.defaultdict(list)
    edges: list[Edge] = []
    for consumer, stage in enumerate(stages):
        buffer = source_of(stage).spec.payload
        # The driver feeds Impulses and TestStreams, so no edge leads to them.
        if buffer != beam_phases.IMPULSE_BUFFER and buffer_of(buffer)[0] is not BufferKind.TEST_STREAM:
            wiring[buffer].append(len(edges))
            edges.append(
                _main_edge(len(edges), consumer, stage, writers[buffer], components, streaming=streaming)
            )
    for consumer, stage in enumerate(stages):
        for pcoll, side in _side_inputs(stage):
            # Beam's fusion (`greedily_fuse`, 2.77) writes each side input to the buffer with this id.
            buffer = beam_phases.create_buffer_id(pcoll)
            wiring[buffer].append(len(edges))
            edges.append(
                Edge(len(edges), stage.name, pcoll, Routing.BROADCAST, 0, writers[buffer], consumer, side)
            )
    return edges, wiring


def _writers(stages: Sequence[beam_phases.Stage]) -> Mapping[bytes, tuple[int, ...]]:
    """The stages (by index) that write to each buffer. A Flatten has been fused away: its buffer has many writers."""
    writers: dict[bytes, set[int]] = collections.defaultdict(set)
    for index, stage in enumerate(stages):
        for transform in stage.transforms:
            if transform.spec.urn == WRITE:
                writers[transform.spec.payload].add(index)
    found = {buffer: tuple(sorted(indexes)) for buffer, indexes in writers.items()}
    # A buffer without writers belongs to a Flatten without inputs: its edge has no producers and is complete at once.
    return collections.defaultdict(tuple, found)


def _main_edge(
    index: int,
    consumer: int,
    stage: beam_phases.Stage,
    producers: tuple[int, ...],
    components: api.Components,
    *,
    streaming: bool,
) -> Edge:
    source = source_of(stage)
    kind, name = buffer_of(source.spec.payload)
    routing = _ROUTING[kind]
    # An edge uses the coder of the PCollection that its consumer's source reads. Before a GroupByKey this is the
    # collection of single pairs, although the source of its reading half reads groups.
    (collection,) = source.outputs.values()
    if routing is Routing.LOCAL and stateful_transform(stage) is not None:
        # Beam does not fuse a stateful DoFn into its producer. The runner must send equal keys to one task.
        routing = Routing.KEYED
    elif routing is Routing.GROUPED:
        (collection,) = components.transforms[name].inputs.values()
        if not streaming and not fires_once(strategy_of(collection, components).trigger):
            # In batch Beam's own trigger driver fires such a trigger. It takes single values with their timestamps,
            # which the packed groups of `GROUPED` do not keep.
            routing = Routing.KEYED
    return Edge(
        index=index,
        name=name if routing.carried else stage.name,
        collection=collection,
        routing=routing,
        level=0,
        producers=producers,
        consumer=consumer,
        one_timestamp_per_group=streaming and stamped_by_elements(collection, components),
    )


def _side_inputs(stage: beam_phases.Stage) -> Iterator[tuple[str, SideInputSpec]]:
    """The side inputs of a stage, each with the PCollection that arrives for it."""
    for transform in stage.transforms:
        tags = beam_phases.side_inputs(transform)
        if tags:
            payload = api.ParDoPayload.FromString(transform.spec.payload)
            for tag, pcoll in sorted(tags.items()):
                proto = payload.side_inputs[tag]
                yield (
                    pcoll,
                    SideInputSpec(
                        transform=descriptor_name(transform, stage),
                        tag=tag,
                        keyed=proto.access_pattern.urn == common_urns.side_inputs.MULTIMAP.urn,
                        elements=original_collection(pcoll),
                        state=f"{transform.unique_name}/{tag}",
                        mapping=proto.window_mapping_fn.payload,
                    ),
                )


# Order and levels.


def sort_stages(stages: Sequence[beam_phases.Stage], edges: Sequence[Edge]) -> list[beam_phases.Stage]:
    """Return the stages, each after its producers. Beam's own order leaves out some producers of side inputs."""
    producers: dict[int, set[int]] = {index: set() for index in range(len(stages))}
    for edge in edges:
        if not edge.routing.carried:
            producers[edge.consumer].update(edge.producers)
    return [stages[index] for index in graphlib.TopologicalSorter(producers).static_order()]


def stage_levels(count: int, edges: Sequence[Edge]) -> list[int]:
    """Return the level of each stage; the stages must be in topological order."""
    inputs: dict[int, list[Edge]] = collections.defaultdict(list)
    for edge in edges:
        if not edge.routing.carried:
            inputs[edge.consumer].append(edge)
    levels = [0] * count
    for stage in range(count):
        levels[stage] = max((_level_of(edge, levels) for edge in inputs[stage]), default=0)
    return levels


def with_level(edge: Edge, levels: Sequence[int]) -> Edge:
    """Return an edge with its level: where its consumer runs, or for a carried edge, where its last producer runs."""
    level = _level_of(edge, levels) if edge.routing.carried else levels[edge.consumer]
    return dataclasses.replace(edge, level=level)


def _level_of(edge: Edge, levels: Sequence[int]) -> int:
    """The first level at which the elements of an edge can be read: an exchange leads one level down."""
    return max((levels[p] for p in edge.producers), default=0) + (not edge.routing.is_local)


# Parts of a fused stage.


def source_of(stage: beam_phases.Stage) -> api.PTransform:
    """Return the transform that takes in the elements of a stage."""
    (source,) = (t for t in stage.transforms if t.spec.urn == READ)
    return source


def buffer_of(buffer: bytes) -> tuple[BufferKind, str]:
    """Return the kind and the name of a buffer that is not the Impulse's."""
    kind, name = beam_phases.split_buffer_id(buffer)
    return BufferKind(kind), name


def stateful_transform(stage: beam_phases.Stage) -> api.PTransform | None:
    """Return the transform of a stage that has user state or timers. Beam fuses at most one into a stage."""
    for transform in stage.transforms:
        if transform.spec.urn == PAR_DO:
            payload = api.ParDoPayload.FromString(transform.spec.payload)
            if payload.state_specs or payload.timer_family_specs:
                return transform
    return None


def descriptor_name(transform: api.PTransform, stage: beam_phases.Stage) -> str:
    """Return the unique name of a transform, with a suffix for a read that Beam named like its Impulse."""
    twins = [t for t in stage.transforms if t.unique_name == transform.unique_name]
    if transform.spec.urn == READ and len(twins) > 1:
        return str(transform.unique_name) + "/Read"
    return str(transform.unique_name)
