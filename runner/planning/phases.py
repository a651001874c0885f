"""The phases that turn Beam's stages of one transform each into fused stages: Beam's phases and the runner's.

A phase takes the list of stages and returns another one. Beam's phases lift combiners and fuse. The others change the
graph before Beam fuses it. `cut_reads` and `cut_publications` end the epoch before a splittable DoFn and before a
post-commit step: the commit record carries their elements. `expand_reshuffles` makes a Reshuffle one exchange without
a GroupByKey. `drop_carried_reshuffles` removes a Reshuffle that only other runners need. `views.group_views` groups
the side inputs of streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.portability.fn_api_runner import translations as beam_phases

from penstock.publish import CARRIED_RESHUFFLE, POST_COMMIT
from penstock.runner.planning.urns import EMPTY_URN, READ, WRITE, BufferKind
from penstock.runner.planning.views import group_views

PAR_DO = common_urns.primitives.PAR_DO.urn
PROCESS = common_urns.sdf_components.PROCESS_SIZED_ELEMENTS_AND_RESTRICTIONS.urn
TEST_STREAM = common_urns.primitives.TEST_STREAM.urn
_SPLIT = common_urns.sdf_components.SPLIT_AND_SIZE_RESTRICTIONS.urn
_GBK = common_urns.primitives.GROUP_BY_KEY.urn
_COMBINE = common_urns.composites.COMBINE_PER_KEY.urn
_FLATTEN = common_urns.primitives.FLATTEN.urn
_RESHUFFLE = common_urns.composites.RESHUFFLE.urn
KNOWN_URNS = frozenset([_FLATTEN, _GBK, _RESHUFFLE, TEST_STREAM])

Phase = Callable[[list[beam_phases.Stage], beam_phases.TransformContext], Iterable[beam_phases.Stage]]


def phases(*, streaming: bool) -> list[Phase]:
    """Return all phases in their order, for a batch or for a stream."""
    # Beam's phases and their order are from `FnApiRunner.create_stages` (2.77). Ours come before `greedily_fuse`,
    # because each of them expects stages of one transform.
    return [
        beam_phases.annotate_downstream_side_inputs,
        beam_phases.pack_combiners,
        lift_where_times_allow if streaming else beam_phases.lift_combiners,
        beam_phases.annotate_stateful_dofns_as_roots,
        beam_phases.read_to_impulse,
        expand_test_streams,
        beam_phases.expand_sdf,
        # After `expand_sdf`, which makes the Reshuffle and the reads that these phases change.
        only_splits_into_reshuffles,
        *([cut_reads] if streaming else []),
        drop_carried_reshuffles,
        cut_publications,
        *([group_views] if streaming else []),
        # After the phases that remove Reshuffles: each remaining one costs an exchange.
        expand_reshuffles,
        beam_phases.expand_gbk,
        beam_phases.sink_flattens,
        beam_phases.greedily_fuse,
        beam_phases.impulse_to_input,
        beam_phases.sort_stages,
        # Before `add_impulse_to_dangling_transforms`, which adds an Impulse to every stage without input, also to this
        # one.
        empty_flattens,
        beam_phases.add_impulse_to_dangling_transforms,
    ]


def empty_flattens(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """Make each Flatten without inputs a source that starts like an Impulse and emits no element."""
    # After fusion the only Flattens are those without inputs: the others have become writes to one buffer
    # (`sink_flattens`).
    for stage in stages:
        for transform in stage.transforms:
            if transform.spec.urn == _FLATTEN and not transform.inputs:
                transform.spec.urn = EMPTY_URN
        yield stage


def lift_where_times_allow(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """Lift combiners, except if the timestamp of a pane is the earliest or latest one of its elements.

    A lifted combiner sends partial sums. A partial sum has one timestamp for all its elements. So the timestamps of the
    elements are lost, and late elements, which must not count for the timestamp of the pane, cannot be told apart.
    """
    for stage in stages:
        (transform,) = stage.transforms
        (given,) = transform.inputs.values() if transform.spec.urn == _COMBINE else ("",)
        if given and stamped_by_elements(given, context.components):
            yield from _unlifted(stage, given, context)
        else:
            yield from beam_phases.lift_combiners([stage], context)


def _unlifted(
    stage: beam_phases.Stage, given: str, context: beam_phases.TransformContext
) -> list[beam_phases.Stage]:
    """Expand a combiner as Beam does, but without lifting it.

    Beam's `lift_combiners` (2.77) lifts a combiner only under a few triggers that it knows. So for the time of the call
    the input gets a copy of its windowing strategy with another trigger ("after 2 elements"), under which Beam does not
    lift. The copy is removed afterwards.
    """
    components = context.components
    strategy = components.pcollections[given].windowing_strategy_id
    whole = beam_phases.unique_name(components.windowing_strategies, f"{strategy}_whole")
    components.windowing_strategies[whole].trigger.element_count.element_count = 2
    components.pcollections[given].windowing_strategy_id = whole
    try:
        return list(beam_phases.lift_combiners([stage], context))
    finally:
        components.pcollections[given].windowing_strategy_id = strategy
        # The plan contains all windowing strategies, so remove the one that no PCollection uses any more.
        del components.windowing_strategies[whole]


def only_splits_into_reshuffles(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> list[beam_phases.Stage]:
    """Remove side inputs from the inputs of the Reshuffle that Beam puts into a splittable DoFn."""
    splits = {p for s in stages for t in s.transforms if t.spec.urn == _SPLIT for p in t.outputs.values()}
    # Beam 2.77 gives that Reshuffle all inputs of the DoFn. With a side input it would be an exchange with two inputs.
    for stage in stages:
        (transform,) = stage.transforms
        if transform.spec.urn == _RESHUFFLE and splits & set(transform.inputs.values()):
            for tag in [tag for tag, pcoll in transform.inputs.items() if pcoll not in splits]:
                del transform.inputs[tag]
    return stages


def cut_reads(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """End the epoch before each splittable DoFn, and drop the Reshuffle that Beam puts there.

    The Reshuffle is not needed: the driver assigns the elements in the commit record to the tasks.
    """
    by_output = {
        pcoll: s
        for s in stages
        for t in s.transforms
        if t.spec.urn == _RESHUFFLE
        for pcoll in t.outputs.values()
    }
    reads = [s for s in stages if s.transforms[0].spec.urn == PROCESS]
    dropped = {id(by_output[pcoll]) for s in reads for pcoll in _main_inputs(s) if pcoll in by_output}
    for stage in stages:
        if id(stage) in dropped:
            continue
        if stage not in reads:
            yield stage
            continue
        (transform,) = stage.transforms
        (pcoll,) = _main_inputs(stage)
        # The record carries the input of the dropped Reshuffle. The read keeps the Reshuffle's output as its input.
        source = by_output[pcoll].transforms[0] if pcoll in by_output else None
        written = next(iter(source.inputs.values())) if source else pcoll
        yield from _cut(stage, written, pcoll, BufferKind.RESIDUAL, step_name(transform))


def cut_publications(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """End the epoch before each post-commit step."""
    for stage in stages:
        (transform,) = stage.transforms
        if POST_COMMIT not in transform.annotations or transform.spec.urn != PAR_DO:
            yield stage
            continue
        (pcoll,) = _main_inputs(stage)
        # A copy of the PCollection: other consumers of the original still read it in this epoch, and Beam would fuse
        # the step with them.
        carried = _copy_of(pcoll, context)
        for tag, name in list(transform.inputs.items()):
            if name == pcoll:
                transform.inputs[tag] = carried
        yield from _cut(stage, pcoll, carried, BufferKind.PUBLISH, transform.unique_name)


def drop_carried_reshuffles(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """Remove the Reshuffle before a post-commit step: the commit record carries those elements."""
    # First find all of them: a consumer may come before its producer in the list.
    replacements = {}
    for stage in stages:
        (transform,) = stage.transforms
        if CARRIED_RESHUFFLE in transform.annotations and transform.spec.urn == _RESHUFFLE:
            (given,), (made,) = transform.inputs.values(), transform.outputs.values()
            replacements[made] = given
    for stage in stages:
        (transform,) = stage.transforms
        if any(made in replacements for made in transform.outputs.values()):
            continue
        for tag, pcoll in list(transform.inputs.items()):
            transform.inputs[tag] = replacements.get(pcoll, pcoll)
        yield stage


def expand_test_streams(
    stages: list[beam_phases.Stage], context: beam_phases.TransformContext
) -> Iterator[beam_phases.Stage]:
    """Read each output of a TestStream from a separate buffer, which the driver fills."""
    for stage in stages:
        (transform,) = stage.transforms
        if transform.spec.urn != TEST_STREAM:
            yield stage
            continue
        for tag, made in transform.outputs.items():
            # The tag is a part of the name: `driver/teststream.py` finds the steps of an event by it.
            name = f"{transform.unique_name}/{tag}"
            buffer = beam_phases.create_buffer_id(name, kind=BufferKind.TEST_STREAM)
            yield beam_phases.Stage(
                f"{name}/Read",
                [_end(f"{name}/Read", READ, buffer, outputs={"out": made})],
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
        yield from _write_and_read(transform.unique_name, given, made, BufferKind.RESHUFFLE, stage)


def _share_coder(given: str, made: str, context: beam_phases.TransformContext) -> None:
    """Give both ends of a Reshuffle one coder: the input's, unless only the output has a coder of pairs.

    Beam gives an untyped output a coder of pairs if a GroupByKey consumes it.
    """
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
    kind: BufferKind,
    step: str,
) -> Iterator[beam_phases.Stage]:
    """Separate a stage from its producers by the end of the epoch: `written` is carried, the stage reads `read`."""
    write, source = _write_and_read(step, written, read, kind, stage)
    # The write need not follow other stages, because its reader runs in the next epoch. The stage follows its own
    # write, so that Beam does not fuse the two into one stage, which would be a cycle.
    write.must_follow = frozenset()
    stage.must_follow = stage.must_follow | frozenset([write])
    yield write
    yield source
    yield stage


def _write_and_read(
    name: str, written: str, read: str, kind: BufferKind, like: beam_phases.Stage
) -> tuple[beam_phases.Stage, beam_phases.Stage]:
    """Return both ends of a buffer, each as a stage. Both are ordered among the stages as `like` is."""
    buffer = beam_phases.create_buffer_id(name, kind=kind)
    write = beam_phases.Stage(
        f"{name}/Write {kind}",
        [_end(f"{name}/Write {kind}", WRITE, buffer, inputs={"in": written})],
        downstream_side_inputs=frozenset(),
        must_follow=like.must_follow,
    )
    source = beam_phases.Stage(
        f"{name}/Read {kind}",
        [_end(f"{name}/Read {kind}", READ, buffer, outputs={"out": read})],
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


def stamped_by_elements(collection: str, components: api.Components) -> bool:
    """Whether the timestamp of a group depends on the timestamps of its elements, and not only on its window."""
    return strategy_of(collection, components).output_time != api.OutputTime.END_OF_WINDOW


def strategy_of(collection: str, components: api.Components) -> api.WindowingStrategy:
    """The windowing strategy of a PCollection."""
    return components.windowing_strategies[components.pcollections[collection].windowing_strategy_id]
