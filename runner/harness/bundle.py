"""One fused stage in process: Beam's own bundle processor, driven by our loop. Uses Beam's worker internals.

Beam's `BundleProcessor.process_bundle` reads from a data channel and returns at the end of the bundle. Here the caller
starts the operations, feeds elements as they arrive from the exchange, fires timers when all input has come, and
finishes the bundle. So output leaves while input still comes, and several stages can be open in one task.
"""

from __future__ import annotations

import contextlib
import logging
import time
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.options.value_provider import RuntimeValueProvider
from apache_beam.portability.api import beam_fn_api_pb2, beam_runner_api_pb2
from apache_beam.runners import pipeline_context
from apache_beam.runners.worker import statesampler
from apache_beam.runners.worker.bundle_processor import BundleProcessor, ExecutionContext, TimerInfo
from apache_beam.transforms import core, userstate
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, WindowedValue

from penstock.pace import Pace, reading_at
from penstock.runner.harness import operations
from penstock.runner.harness.bounded_caches import bounded_caches
from penstock.runner.harness.chains import Chains
from penstock.runner.harness.elements import ElementCoder
from penstock.runner.harness.shared_context import shared_by_threads
from penstock.runner.harness.split_timer import Budget, SplitTimer
from penstock.runner.harness.user_state import StateHandler, domain_of
from penstock.runner.harness.writer import Send
from penstock.runner.harness.writers import writer_for
from penstock.runner.planning.plan import Plan, Stage

logger = logging.getLogger(__name__)

_ASK_EACH_TIME = "disable_global_windowed_args_caching"
KNOWN_BEAM = ("2.77.",)
"""Prefixes of the Beam versions whose worker internals this module is tested with."""


class PlanContext:
    """The coders and windowings of a plan, decoded once per process."""

    def __init__(self, plan: Plan) -> None:
        if RuntimeValueProvider.runtime_options is None:
            # A value provider raises an error instead of returning its default until the options are set.
            RuntimeValueProvider.set_runtime_options({})
        self.plan = plan
        self.components = beam_runner_api_pb2.Components.FromString(plan.components)
        self._context = pipeline_context.PipelineContext(self.components)
        self.side_input_cache: dict[int, Any] = {}
        """Decoded side inputs that a process keeps from epoch to epoch, by edge."""

    def windowing(self, collection: str) -> Any:
        """The windowing of a PCollection."""
        strategy = self.components.pcollections[collection].windowing_strategy_id
        return self._context.windowing_strategies.get_by_id(strategy)

    def trigger(self, collection: str) -> beam_runner_api_pb2.Trigger:
        """The trigger of a PCollection."""
        strategy = self.components.pcollections[collection].windowing_strategy_id
        return self.components.windowing_strategies[strategy].trigger

    def coder_by_id(self, name: str) -> coders.Coder:
        """The coder with this id in the pipeline's proto."""
        return self._context.coders.get_by_id(name)

    def coder(self, collection: str) -> ElementCoder:
        """The coder of a PCollection's windowed values."""
        proto = self.components.pcollections[collection]
        strategy = self.components.windowing_strategies[proto.windowing_strategy_id]
        return ElementCoder(
            self._context.coders.get_by_id(proto.coder_id),
            self._context.coders.get_by_id(strategy.window_coder_id),
        )


@dataclass(frozen=True, slots=True)
class ReadResidual:
    """The unread rest of an element of a splittable DoFn.

    `element` is the encoded element with its restriction, `delay_us` the delay that the DoFn asked for.
    """

    element: bytes
    watermark_us: int | None
    delay_us: int


class StageProcessor:
    """A stage that runs bundle after bundle in this process."""

    def __init__(self, context: PlanContext, stage: Stage) -> None:
        self.stage = stage
        self.context = context
        self.state = StateHandler()
        descriptor = _descriptor(context, stage)
        self._chains = Chains(descriptor)
        with contextlib.ExitStack() as stack:
            stack.enter_context(dofn_specs_cached())
            stack.enter_context(self._chains.found())
            stack.enter_context(bounded_caches())
            if context.plan.streaming:
                stack.enter_context(_side_inputs_read_for_each_element())
            # No runner capabilities: the only one that Beam 2.77 asks about is a bulk read of map side inputs, which
            # `StateHandler` does not serve. `_NoChannels` is never called, because the descriptor has no data source,
            # no data sink and no service for timers.
            self._processor = BundleProcessor(frozenset(), descriptor, self.state, _NoChannels())
        # Ordered by Beam: each operation stands before its consumers.
        self._ops: Mapping[str, Any] = self._processor.ops
        self._source = self._ops[stage.source]
        self._source.chain = self._chains.connect(self._ops, stage.source)
        self._sinks = [op for op in self._ops.values() if isinstance(op, operations.SinkOperation)]
        self._read = self._ops[stage.reads] if stage.reads else None
        self._execution: Any = None
        self._paces: list[Pace] = []
        """One for each read of the bundle."""
        # Operations live as long as the processor, so `setup` of a DoFn runs once per process and stage, not once per
        # epoch.
        self._used = False
        for family, is_event_time in self._timer_families():
            self.state.timer_coder(family).domain = domain_of(is_event_time)
        self.coder = context.coder(stage.collection)
        self._coder_impl = self.coder.get_impl()
        self.windowing = context.windowing(stage.collection)
        self.trigger = context.trigger(stage.collection)

    def _timer_families(self) -> Iterator[tuple[str, bool]]:
        # Beam's `TimerInfo` does not know the time domain of its family, so it is read from the transform's proto.
        for _, family in self._processor.timers_info:
            proto = beam_runner_api_pb2.PTransform.FromString(self.stage.transforms[self.stage.state])
            payload = beam_runner_api_pb2.ParDoPayload.FromString(proto.spec.payload)
            domain = payload.timer_family_specs[family].time_domain
            yield family, domain == beam_runner_api_pb2.TimeDomain.EVENT_TIME

    # One bundle: start, any number of inputs, finish.

    def start(self, partition: int, partitions: int, send: Send) -> None:
        """Start a bundle whose output goes to `send`."""
        if self._used:
            # `reset` sets counters and caches of side inputs back. A new processor needs none: its counters are zero.
            self._join_sampler()
            self._processor.reset()
        self._used = True
        self._paces = []
        edges = self.context.plan.edges
        # New writers for each bundle: the number of partitions may differ, and a writer of a failed bundle may hold
        # half a block.
        for sink in self._sinks:
            sink.writers = [
                writer_for(edges[e], self.context.coder(edges[e].collection), partition, partitions, send)
                for e in sink.edges
            ]
        self._chains.start()
        # The id appears in Beam's log records only. Beam gives each bundle a different one, to match split requests to
        # bundles; here a split is a method call.
        self._execution = ExecutionContext(instruction_id=f"{self.stage.index}")
        self._processor.state_sampler.start()
        # Beam encodes a timer into the output stream of its `TimerInfo`. The coder that is passed here stores the timer
        # in the state store instead, and nothing is written to the stream.
        for transform, family in self._processor.timers_info:
            capture = TimerInfo(self.state.timer_coder(family), _NO_STREAM)
            self._ops[transform].add_timer_info(family, capture)
        # Consumers before producers: a producer's `start` may already emit elements (`start_bundle`).
        for op in reversed(list(self._ops.values())):
            op.execution_context = self._execution
            op.start()

    def elements(self, block: bytes) -> Iterator[WindowedValue]:
        """Decode a block of the stage's input."""
        stream = coder_impl.create_InputStream(block)
        # Nested encodings say where they end, so the elements of a block need no lengths.
        while stream.size() > 0:
            yield self._coder_impl.decode_from_stream(stream, True)

    def process(self, element: WindowedValue) -> None:
        """Run one element through the stage."""
        self.process_all((element,))

    def process_all(self, elements: Iterable[WindowedValue]) -> None:
        """Run elements through the stage, one after the other. `elements` must not run another stage."""
        # Beam's metrics go to the sampler of the current thread. A task runs several stages in one thread, in turns. A
        # stage that runs in the middle of this call sets the sampler back (`suspended_stage`).
        statesampler.set_current_tracker(self._processor.state_sampler)
        self._source.process_all(elements)

    def process_to_the_end(self, element: WindowedValue) -> None:
        """Run an element of a splittable DoFn to its end (batch). If the DoFn defers the rest, wait as it asks to.

        Bundle finalizers run between the parts. Like all results of a running batch pipeline, the parts are not
        durable yet.
        """
        self.process(element)
        while self._execution.delayed_applications:
            self.finalize()
            # Take the first one: a DoFn's parts run in the order in which it deferred them.
            _, residual = self._execution.delayed_applications.pop(0)
            time.sleep(_delay_us(residual) / 1e6)
            self.process(residual.residual_value)

    def read(self, block: bytes, budget: Budget) -> list[ReadResidual]:
        """Run a restriction until it ends, defers or the budget is used up; return its residuals.

        Raises:
            the user's exception, also one that the tracker raises when it is split.
        """
        # One restriction at a time: a split applies to the element that the operation processes at that moment.
        (element,) = self.elements(block)
        idle = budget.idle
        pace = Pace(
            lambda: idle.end,
            idle.poll_seconds,
            may_return=budget.may_end_early,
            catches_up=budget.catches_up,
        )
        self._paces.append(pace)
        with SplitTimer(self._read, budget, self.output_size) as timer, reading_at(pace):
            self.process(element)
        # A DoFn that defers leaves its residuals in the execution context. The timer has the residuals of a split.
        residuals = timer.residuals + [residual for _, residual in self._execution.delayed_applications]
        self._execution.delayed_applications.clear()
        return [self._residual(residual) for residual in residuals]

    def fire(self, family: str, key: Any, window: Any, tag: str, fire_us: int, hold_us: int) -> None:
        """Run the callback of a user's timer."""
        statesampler.set_current_tracker(self._processor.state_sampler)
        timer = userstate.Timer(
            user_key=key,
            dynamic_timer_tag=tag,
            windows=(window,),
            # Beam uses one class for a timer that is set, that is cleared and that fires; only the first and the last
            # have times.
            clear_bit=False,
            fire_timestamp=Timestamp(micros=fire_us),
            hold_timestamp=Timestamp(micros=hold_us),
            # Beam stores the pane of the element that sets a timer. The state store does not: DoFns cannot read it in a
            # callback (2.77 has no pane parameter for timers).
            paneinfo=PANE_INFO_UNKNOWN,
        )
        self._ops[self.stage.state].process_timer(family, timer)

    def finish(self) -> list[bytes]:
        """End the bundle; return its metrics as serialized `MonitoringInfo`s."""
        statesampler.set_current_tracker(self._processor.state_sampler)
        # Producers before consumers, as in `process_bundle`: `finish_bundle` may emit elements. User state is
        # written here too: until then a `DoOperation` keeps its changes.
        for op in self._ops.values():
            op.finish()
        # Flush after all operations have finished, because each of them may still have written to any edge.
        for sink in self._sinks:
            for writer in sink.writers:
                writer.flush()
        self._chains.settle()
        self._stop_sampling()
        return [info.SerializeToString() for info in self._processor.monitoring_infos()]

    def output_size(self) -> tuple[int, int]:
        """Records and bytes that this bundle has written to edges so far. May be called from another thread.

        If more changes were claimed than records written, their number: a record can be a batch of changes, and a step
        that is fused with the reader can hold them until the bundle ends. What such a step holds counts as written.
        """
        # No lock is needed: the numbers only grow, and a read that is one element behind delays a split by one poll.
        writers = [writer for sink in self._sinks for writer in sink.writers]
        claimed = sum(pace.claimed for pace in self._paces)
        held_bytes = sum(pace.held_bytes for pace in self._paces)
        return max(claimed, sum(w.records for w in writers)), sum(w.bytes for w in writers) + held_bytes

    @property
    def is_behind(self) -> bool:
        """Whether a restriction of this bundle has more data at its source."""
        return any(pace.is_behind for pace in self._paces)

    @property
    def to_finalize(self) -> bool:
        """Whether a DoFn has registered bundle finalizers."""
        return bool(self._processor.requires_finalization())

    def finalize(self) -> None:
        """Run the bundle finalizers; Beam logs their exceptions."""
        self._processor.finalize_bundle()

    def tear_down(self) -> None:
        """Call the DoFns' `teardown`; an exception is logged and changes nothing."""
        try:
            self._processor.shutdown()
        except Exception:
            logger.exception("a DoFn's teardown failed")

    def discard(self) -> None:
        """End a bundle after an error; the processor must not be used again."""
        self._stop_sampling()

    def _stop_sampling(self) -> None:
        """Tell the sampler's thread to end, and do not wait for it.

        Beam's `StateSampler.stop` joins the thread, which sleeps for up to 0.2 s between two samples (2.77,
        `statesampler_fast.pyx`). A task ends its stages one after the other, so it would sleep once for each. The
        thread looks at `finished` when it wakes and ends; `start` joins it before the same sampler starts again.
        """
        sampler = self._processor.state_sampler
        if sampler.started and not sampler.finished:
            statesampler.set_current_tracker(None)
            sampler.finished = True

    def _join_sampler(self) -> None:
        """Wait for the sampler's thread of the last bundle, which would read `finished` after `reset` clears it.

        The thread is private to the sampler, so `stop` joins it, which insists on being called only once.
        """
        sampler = self._processor.state_sampler
        sampler.finished = False
        sampler.stop()

    def _residual(self, residual: Any) -> ReadResidual:
        watermark = residual.current_watermark
        return ReadResidual(
            # The value is the windowed element with its restriction, so the coder of the stage's input encodes it.
            element=self._coder_impl.encode_nested(residual.residual_value),
            watermark_us=None if watermark is None else watermark.micros,
            delay_us=_delay_us(residual),
        )


@contextlib.contextmanager
def suspended_stage() -> Iterator[None]:
    """Let another stage run in the middle of a bundle; afterwards metrics go to the step that runs now.

    Beam finds the step that a metric belongs to through the thread's current state sampler.
    """
    tracker = statesampler.get_current_tracker()
    try:
        yield
    finally:
        statesampler.set_current_tracker(tracker)


@shared_by_threads
@contextlib.contextmanager
def dofn_specs_cached() -> Iterator[None]:
    """Inspect the signatures of a DoFn's methods once, however often Beam asks for its state specs.

    Beam 2.77 asks several times when it makes a pipeline's proto, and again when it makes the DoFn's operation. Each
    time it inspects about 40 methods, of which most are the same functions for all DoFns. In a pipeline of hundreds of
    transforms that is half of the time before the first element.
    """
    inspect, arguments = userstate.get_dofn_specs, core.get_function_arguments
    known: dict[int, Any] = {}

    def cached(dofn: Any) -> Any:
        # The cache holds the DoFn itself too, so that no other object gets its id.
        if id(dofn) not in known:
            known[id(dofn)] = (dofn, inspect(dofn))
        return known[id(dofn)][1]

    def cached_arguments(obj: Any, name: str) -> tuple[list[str], list[Any]]:
        method = getattr(obj, name, None)
        # `_inspect_process` and its like answer for a single DoFn, and so may a function that is an attribute of one.
        if not isinstance(method, types.MethodType) or hasattr(obj, f"_inspect_{name}"):
            return arguments(obj, name)
        found = _arguments.get(method.__func__)
        if found is None:
            found = _arguments[method.__func__] = arguments(obj, name)
        names, defaults = found
        return list(names), list(defaults)

    # The modules' attributes, and not a context variable: Beam makes the operations in another thread
    # (`ExecutionTreeCreator`).
    userstate.get_dofn_specs, core.get_function_arguments = cached, cached_arguments
    try:
        yield
    finally:
        userstate.get_dofn_specs, core.get_function_arguments = inspect, arguments


_arguments: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Names and default values of the arguments of functions, as Beam sees them."""


@contextlib.contextmanager
def _side_inputs_read_for_each_element() -> Iterator[None]:
    """DoFns that are made in this context read side inputs in the global window again for each element.

    Otherwise Beam keeps the first value as long as the DoFn lives. In a stream the value changes. Beam reads the
    experiment from the runtime options when it makes the DoFn's operation.
    """
    # The options are global in the process, so they are set back: a later stage may belong to a batch pipeline, where
    # the cached value is right and saves time.
    before = RuntimeValueProvider.runtime_options
    RuntimeValueProvider.set_runtime_options({**(before or {}), "experiments": [_ASK_EACH_TIME]})
    try:
        yield
    finally:
        RuntimeValueProvider.set_runtime_options(before)


class _NoStream:
    """Replaces a timer's output stream, to which nothing is written: see `StageProcessor.start`."""

    def maybe_flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""


_NO_STREAM = _NoStream()


class _NoChannels:
    """Replaces Beam's data plane. Our sources and sinks use the exchange instead."""

    def create_data_channel(self, port: Any) -> Any:
        raise AssertionError("a Penstock stage has no data channel")

    def create_data_channel_from_url(self, url: str) -> Any:
        raise AssertionError("a Penstock stage has no data channel")


def _delay_us(residual: Any) -> int:
    # A `Duration` despite its name (2.77); negative if the DoFn deferred to a time that has passed.
    return max(0, residual.deferred_timestamp.micros) if residual.deferred_timestamp else 0


def _descriptor(context: PlanContext, stage: Stage) -> beam_fn_api_pb2.ProcessBundleDescriptor:
    components = context.components
    transforms = {
        name: beam_runner_api_pb2.PTransform.FromString(data) for name, data in stage.transforms.items()
    }
    # Include only the PCollections of the stage: a graph of hundreds of stages would copy all of them for each stage.
    named = {
        pcoll for each in transforms.values() for pcoll in (*each.inputs.values(), *each.outputs.values())
    }
    return beam_fn_api_pb2.ProcessBundleDescriptor(
        id=f"stage-{stage.index}",
        transforms=transforms,
        pcollections={name: components.pcollections[name] for name in named & components.pcollections.keys()},
        # All coders and windowings, not only those that the stage uses: they refer to others by id.
        coders=dict(components.coders.items()),
        windowing_strategies=dict(components.windowing_strategies.items()),
        environments=dict(components.environments.items()),
    )
