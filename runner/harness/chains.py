"""Chains: runs of simple steps of a stage that run as one generated loop. Uses Beam's worker internals (2.77).

Between two DoFns Beam counts the element, wraps it, enters a state of the sampler, and calls an operation, a runner, an
invoker and an output handler. For a Map of a few operations that is most of its cost. A chain calls the functions of
its steps one after the other (`chain_code.py`). Beam's operations stay: they set up, start, finish and tear down the
DoFns and report the metrics.

**A step is simple** if Beam itself would call it with nothing but the element (`SimpleInvoker`): no side inputs, other
arguments, state, timers, restriction or batches, and no parameter that stands for the timestamp, window, pane or a
context. So it does not see windows, and Beam calls it once for an element in several windows. Map, MapTuple and Filter
are recognized by the code of the function that Beam wraps theirs in; all others are called as Beam calls them and
may return anything that Beam can iterate over. A `WindowInto` the global window or fixed windows is simple too, for
elements that are in one window; others go through Beam's operations from there on.

**A chain** is a run of simple steps in which each one's main output has the next one as its only consumer. It begins
behind the stage's source or behind another DoFn's output, and at most `_MOST_STEPS` are in one.

**The end** of a chain is the only consumer of its last step, if that is a sink or a combiner (`chain_ends.py`). The
loop calls it with the value, so nothing wraps the value.

**What is not the common case:**

- An output that is a `TaggedOutput`, `TimestampedValue` or `WindowedValue` goes to an output handler of Beam. The steps
  behind it are a separate chain then, because some steps give every element a timestamp.
- An element whose size Beam samples, and whose type it checks with `performance_runtime_type_check`, goes through the
  counters of Beam at each output: all of the first ones, then fewer and fewer.
- The first call of a DoFn whose result Beam checks for `str`, `bytes` and `dict` runs in Beam's operations, with
  everything behind it. So does the output of `finish_bundle`.

Elements that stay in the chain are added to the counters of Beam's metrics before these are reported. The state of
the sampler is the one of the step whose function runs, so metrics, log records and sampled times belong to it. An
exception goes through the step's own `DoFnRunner`, which adds the step's name and logs it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners import common
from apache_beam.runners.worker import operations

from penstock.runner.harness.chain import Chain, ChainEnd, ChainReceiver, SimpleStep
from penstock.runner.harness.chain_code import Kind
from penstock.runner.harness.chain_ends import END_URNS, chain_end
from penstock.runner.harness.simple_steps import simple_function, window_function

_MOST_STEPS = 15
"""Python nests at most 20 loops in one function."""
_LEAST_BEHIND_A_DOFN = 2
"""A chain that gets its elements one by one costs more than one step of Beam, and less than two. An end is a step."""
_FINDING = threading.RLock()
"""Held while `common.DoFnRunner` is replaced."""


class Chains:
    """The chains of one bundle processor, for which `descriptor` is the graph."""

    def __init__(self, descriptor: beam_fn_api_pb2.ProcessBundleDescriptor) -> None:
        self._transforms = descriptor.transforms
        self._consumers: defaultdict[str, list[str]] = defaultdict(list)
        for name, transform in self._transforms.items():
            for collection in transform.inputs.values():
                self._consumers[collection].append(name)
        self._steps: dict[str, SimpleStep] = {}
        self._chains: list[Chain] = []
        self._ops: Mapping[str, Any] = {}

    @contextlib.contextmanager
    def found(self) -> Iterator[None]:
        """Find the simple steps among the DoFns that are set up in this context, and put receivers before chains.

        Beam keeps the DoFn that it has set up, and the receivers of its outputs, where Python code cannot reach them.
        Both are arguments of the `DoFnRunner` that an operation makes in its `setup`. Consumers are set up before
        producers, so the steps behind an output are known when its producer is set up.
        """

        def runner(fn: Any, args: Any, kwargs: Any, side_inputs: Any, windowing: Any, **other: Any) -> Any:
            name, receivers = other["transform_id"], other["tagged_receivers"]
            has_more = args or kwargs or side_inputs or other["user_state_context"]
            simple = None if has_more else self._simple(name, fn)
            following = self._following(name, receivers) if simple else None
            self._begin_chains(name, receivers, following)
            made = make(fn, args, kwargs, side_inputs, windowing, **other)
            if simple:
                self._steps[name] = SimpleStep(name, *simple, made, windowing, receivers, following)
            return made

        with _FINDING:
            # The module's attribute: the compiled operations look it up at each call.
            make, common.DoFnRunner = common.DoFnRunner, runner
            try:
                yield
            finally:
                common.DoFnRunner = make

    def connect(self, ops: Mapping[str, Any], source: str) -> Chain | None:
        """Take the operations when all are set up; return the chain behind the stage's source if there is one."""
        self._ops = ops
        outputs = list(self._transforms[source].outputs.values())
        first = self._only_consumer(outputs[0]) if len(outputs) == 1 else None
        if first is None or not _is_single(ops[source].receivers[0]):
            return None
        return self._chain(first, ops[source].receivers[0])

    def start(self) -> None:
        """Start a bundle, for which the sinks have their writers."""
        for chain in self._chains:
            chain.start()

    def settle(self) -> None:
        """Count the elements that stayed in chains. To be called before the metrics of a bundle are read."""
        for chain in self._chains:
            chain.settle()

    def _simple(self, name: str, fn: Any) -> tuple[Kind, Callable[..., Any]] | None:
        urn = self._transforms[name].spec.urn
        if urn == common_urns.primitives.ASSIGN_WINDOWS.urn:
            assign = window_function(fn.windowing.windowfn)
            return (Kind.WINDOW, assign) if assign else None
        return simple_function(fn) if urn == common_urns.primitives.PAR_DO.urn else None

    def _following(self, name: str, receivers: Mapping[str | None, Any]) -> SimpleStep | None:
        """The step that follows a simple one in its chain."""
        step = self._only_consumer(self._main_output(name))
        return step if step and step.length < _MOST_STEPS and _is_single(receivers[None]) else None

    def _main_output(self, name: str) -> str:
        """The PCollection of a transform's main output."""
        outputs = self._transforms[name].outputs
        return outputs.get("None", "") if len(outputs) > 1 else next(iter(outputs.values()), "")

    def _begin_chains(
        self, name: str, receivers: dict[str | None, Any], following: SimpleStep | None
    ) -> None:
        """Replace the receivers of those outputs of a DoFn behind which a chain begins."""
        outputs = self._transforms[name].outputs
        for tag, collection in outputs.items():
            first = self._only_consumer(collection)
            if first is None or first is following or not self._pays_behind_a_dofn(first):
                continue
            if _is_single(receivers[tag]):
                receiver = self._receiver(receivers[tag], first)
                for each in (tag, None) if len(outputs) == 1 or tag == "None" else (tag,):
                    receivers[each] = receiver

    def _only_consumer(self, collection: str) -> SimpleStep | None:
        """The simple step that is the only consumer of a PCollection."""
        consumers = self._consumers[collection]
        return self._steps.get(consumers[0]) if len(consumers) == 1 else None

    def _pays_behind_a_dofn(self, first: SimpleStep) -> bool:
        """Whether the chain that begins with this step costs less than Beam's operations for elements one by one."""
        last = list(first.to_the_end())[-1]
        consumers = self._consumers[self._main_output(last.name)]
        has_end = [self._transforms[name].spec.urn in END_URNS for name in consumers] == [True]
        return first.length + has_end >= _LEAST_BEHIND_A_DOFN

    def _receiver(self, receiver: Any, first: SimpleStep) -> ChainReceiver:
        def make() -> Chain:
            chain = self._chain(first, None)
            chain.start()
            return chain

        return ChainReceiver(receiver, make)

    def _chain(self, first: SimpleStep, receiver: Any) -> Chain:
        steps = list(first.to_the_end())
        ops = [self._ops[each.name] for each in steps]
        chain = Chain(steps, ops, self._end(steps[-1]), receiver, self._receiver_behind)
        self._chains.append(chain)
        return chain

    def _end(self, last: SimpleStep) -> ChainEnd | None:
        """The end of the chain behind its last step, if that has only one consumer, which is a sink or a combiner."""
        consumers = self._consumers[self._main_output(last.name)]
        if len(consumers) != 1 or not _is_single(last.receivers[None]):
            return None
        return chain_end(self._ops[consumers[0]])

    def _receiver_behind(self, step: SimpleStep) -> common.Receiver:
        """The receiver of what a step emits outside of its chain. The rest of the steps is a chain too.

        So a step that gives each element a timestamp does not send all of them through Beam's operations.
        """
        following, receiver = step.following, step.receivers[None]
        if following and self._pays_behind_a_dofn(following):
            receiver = self._receiver(receiver, following)
        return receiver


def _is_single(receiver: Any) -> bool:
    """Whether a receiver has one consumer, which gets no batches."""
    return type(receiver) is operations.SingletonElementConsumerSet
