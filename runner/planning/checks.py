"""Rejects pipelines that this runner cannot run, before anything starts, with the names of all such transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2 as api

from penstock.errors import UsageError
from penstock.publish import POST_COMMIT

_PAR_DO = common_urns.primitives.PAR_DO.urn
_GBK = common_urns.primitives.GROUP_BY_KEY.urn
_RUNS = frozenset(
    [
        _PAR_DO,
        _GBK,
        common_urns.primitives.IMPULSE.urn,
        common_urns.primitives.FLATTEN.urn,
        common_urns.primitives.TEST_STREAM.urn,
        common_urns.primitives.ASSIGN_WINDOWS.urn,
        common_urns.primitives.MAP_WINDOWS.urn,
        common_urns.deprecated_primitives.READ.urn,
        common_urns.composites.RESHUFFLE.urn,
        common_urns.composites.COMBINE_PER_KEY.urn,
        common_urns.combine_components.COMBINE_PER_KEY_PRECOMBINE.urn,
        common_urns.combine_components.COMBINE_PER_KEY_MERGE_ACCUMULATORS.urn,
        common_urns.combine_components.COMBINE_PER_KEY_EXTRACT_OUTPUTS.urn,
        common_urns.combine_components.COMBINE_PER_KEY_CONVERT_TO_ACCUMULATORS.urn,
        common_urns.combine_components.COMBINE_GROUPED_VALUES.urn,
        python_urns.GENERIC_COMPOSITE_TRANSFORM,
        "beam:dofn:identity:0.1",
    ]
)
_TEST_STREAM = common_urns.primitives.TEST_STREAM.urn
_GLOBAL = common_urns.global_windows.urn
_COMBINE = common_urns.composites.COMBINE_PER_KEY.urn


class UnsupportedPipelineError(UsageError, NotImplementedError):
    """The pipeline uses features that this runner does not support. The message names each transform and feature."""


def refuse_unsupported(pipeline: api.Pipeline, *, streaming: bool) -> None:
    """Check a whole pipeline.

    Raises:
        UnsupportedPipelineError: naming every transform that cannot run, and why.
    """
    found = [f"- {name}: {why}" for name, why in _problems(pipeline, streaming)]
    if found:
        raise UnsupportedPipelineError(
            "PySparkRunner cannot run this pipeline; nothing was started:\n" + "\n".join(found)
        )


def _problems(pipeline: api.Pipeline, streaming: bool) -> Iterator[tuple[str, str]]:
    for name, transform in _leaves(pipeline):
        urn = transform.spec.urn
        if urn not in _RUNS:
            yield name, f"the primitive {urn or '(none)'} is not one that it knows"
        elif urn == _PAR_DO:
            payload = api.ParDoPayload.FromString(transform.spec.payload)
            reasons = [why for applies, why in _PAR_DO_LIMITS if applies(payload)]
            if streaming and payload.side_inputs:
                reasons += _side_input_limits(transform, payload, pipeline.components)
            yield from ((name, why) for why in reasons)


def _leaves(pipeline: api.Pipeline) -> Iterator[tuple[str, api.PTransform]]:
    transforms = pipeline.components.transforms
    waiting = list(pipeline.root_transform_ids)
    while waiting:
        transform = transforms[waiting.pop()]
        # The planning phases replace these two composites as a whole, so their subtransforms never run.
        composite = transform.spec.urn in (_COMBINE, common_urns.composites.RESHUFFLE.urn)
        if transform.subtransforms and not composite:
            waiting.extend(transform.subtransforms)
        # A composite that only returns its input has nothing to run.
        elif set(transform.outputs.values()) - set(transform.inputs.values()):
            yield transform.unique_name, transform


def _map_or_multimap(payload: api.ParDoPayload) -> bool:
    return any(
        spec.WhichOneof("spec") in ("multimap_spec", "map_spec") for spec in payload.state_specs.values()
    )


_PAR_DO_LIMITS: tuple[tuple[Callable[[api.ParDoPayload], bool], str], ...] = (
    (lambda p: bool(p.requires_time_sorted_input), "time-sorted input is not supported"),
    (_map_or_multimap, "map and multimap state, which the Python SDK has no names for, are not supported"),
)


def _side_input_limits(
    transform: api.PTransform, payload: api.ParDoPayload, components: api.Components
) -> Iterator[str]:
    if POST_COMMIT in transform.annotations:
        yield "side inputs of a post-commit step are not supported"
    for tag in sorted(payload.side_inputs):
        side = components.pcollections[transform.inputs[tag]]
        strategy = components.windowing_strategies[side.windowing_strategy_id]
        # A TestStream ends, so its side inputs become complete, although Beam calls them unbounded.
        scripted = any(t.spec.urn == _TEST_STREAM for t in components.transforms.values())
        unbounded = side.is_bounded == api.IsBounded.UNBOUNDED and not scripted
        if unbounded and strategy.window_fn.urn == _GLOBAL and fires_once(strategy.trigger):
            yield (
                f"its side input {side.unique_name} is unbounded and in the global window, so it would never be "
                "complete; give it windows, or a trigger such as Repeatedly(AfterCount(1))"
            )


def fires_once(trigger: api.Trigger) -> bool:
    """Whether a trigger fires a window once, when the watermark has passed its end (or never, in batch at the end)."""
    kind = trigger.WhichOneof("trigger")
    if kind == "after_end_of_window":
        late = trigger.after_end_of_window
        return not (late.HasField("early_firings") or late.HasField("late_firings"))
    return kind in (None, "default", "never")
