"""Plans the side inputs of a stream: each becomes a GroupByKey, and its consumers read the panes.

In Beam's model a streaming side input is a GroupByKey on one constant key, with the side input's own windowing.
Consumers see the latest pane of each window. So the planner adds these steps to the graph: `elements → (b"",
element) → GroupByKey → every partition`. The worker still decodes a side input with the coder of its elements, so
the transform gets its own PCollection back when the plan is written (`original_collection`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.portability.fn_api_runner import translations as beam_phases
from apache_beam.transforms.environments import EmbeddedPythonEnvironment

# Ids that Beam generates contain no "#", so the suffix can be removed again (`original_collection`).
_VIEW = "#view"
_FOLLOW = (
    common_urns.sdf_components.SPLIT_AND_SIZE_RESTRICTIONS.urn,
    common_urns.sdf_components.PROCESS_SIZED_ELEMENTS_AND_RESTRICTIONS.urn,
)
"""The later parts of a splittable DoFn. Elements are blocked only at its first part."""


class KeyFn(beam.DoFn):
    """Gives every element the constant key of a view."""

    def process(self, element: object) -> Iterator[tuple[bytes, object]]:
        yield b"", element


def original_collection(pcollection: str) -> str:
    """Return the PCollection that a view was made of; any other PCollection is returned unchanged."""
    return pcollection.removesuffix(_VIEW)


def group_views(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """Group each side input, and start a stage at each transform that has one, because elements are blocked per stage.

    Elements of a splittable DoFn are blocked where they get their restriction. A pane of the side input is kept while
    there is a residual of its window, so the later parts of the DoFn need not be blocked again.
    """
    made: set[str] = set()
    for stage in stages:
        (transform,) = stage.transforms
        tags = beam_phases.side_inputs(transform)
        for tag, pcollection in tags.items():
            if pcollection not in made:
                made.add(pcollection)
                yield from _view(pcollection, transform.environment_id, context)
            transform.inputs[tag] = pcollection + _VIEW
        if tags and transform.spec.urn not in _FOLLOW:
            # Beam fuses a stage with `forced_root` (read in 2.77) into none of its producers.
            stage.forced_root = True
        yield stage


def _view(
    pcollection: str, environment: str, context: beam_phases.TransformContext
) -> Iterable[beam_phases.Stage]:
    components = context.components
    given = components.pcollections[pcollection]
    name = f"{given.unique_name}/View"
    coders = components.coders
    coders["penstock_view_key"].spec.urn = common_urns.coders.BYTES.urn
    values = f"{given.coder_id}#values"
    coders[values].spec.urn = common_urns.coders.ITERABLE.urn
    coders[values].component_coder_ids[:] = [given.coder_id]
    for made, value in (("#keyed", given.coder_id), (_VIEW, values)):
        coder = f"{given.coder_id}{made}"
        coders[coder].spec.urn = common_urns.coders.KV.urn
        coders[coder].component_coder_ids[:] = ["penstock_view_key", value]
        # Copies, so that both have the windowing of the side input: its trigger decides when a pane becomes visible.
        components.pcollections[pcollection + made].CopyFrom(given)
        components.pcollections[pcollection + made].coder_id = coder
        components.pcollections[pcollection + made].unique_name = name + made
    key = api.PTransform(
        unique_name=f"{name}/Key",
        spec=_key_spec(),
        inputs={"in": pcollection},
        outputs={"out": pcollection + "#keyed"},
        environment_id=environment,
    )
    group = api.PTransform(
        unique_name=f"{name}/Group",
        spec=api.FunctionSpec(urn=common_urns.primitives.GROUP_BY_KEY.urn),
        inputs={"in": pcollection + "#keyed"},
        outputs={"out": pcollection + _VIEW},
    )
    for transform in (key, group):
        components.transforms[transform.unique_name].CopyFrom(transform)
        yield beam_phases.Stage(
            transform.unique_name, [transform], downstream_side_inputs=frozenset([pcollection + _VIEW])
        )


@functools.cache
def _key_spec() -> api.FunctionSpec:
    # Beam pickles a DoFn only as a part of a pipeline, so build a small pipeline and take the spec from it.
    pipeline = beam.Pipeline()
    _ = pipeline | beam.Impulse() | "Key" >> beam.ParDo(KeyFn())
    proto = pipeline.to_runner_api(default_environment=EmbeddedPythonEnvironment.default())
    os.rmdir(pipeline.local_tempdir)  # for transforms of other languages; Beam removes it after a run only
    (spec,) = (t.spec for t in proto.components.transforms.values() if t.unique_name == "Key")
    return spec
