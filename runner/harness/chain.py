"""One chain of simple steps: binds its generated function to Beam's operations, and counts its elements.

`chains.py` says what a chain is, `chain_code.py` generates the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from apache_beam.pvalue import TaggedOutput
from apache_beam.runners import common
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.chain_code import FILENAME, Kind, chain_code

_ALL = 1 << 62
_NOT_PLAIN = (TaggedOutput, TimestampedValue, WindowedValue)
_MOST_TYPES = 1000
"""A program may make a class for each element."""
_plain: set[type] = {int, float, bool, str, bytes, type(None), tuple, list, dict, set, frozenset}
"""Classes of plain elements. It grows: a look-up costs a fifth of `issubclass`."""


def is_plain(output: Any) -> bool:
    """Whether an output is nothing but the value of an element: Beam treats three classes differently."""
    # Not `isinstance`, which believes a proxy that names another class as its `__class__`. Beam's compiled code does
    # not (2.77, `_OutputHandler.handle_process_outputs`).
    kind = type(output)
    if issubclass(kind, _NOT_PLAIN):
        return False
    # A metaclass may make a class that cannot be hashed.
    if len(_plain) < _MOST_TYPES and type(kind).__hash__ is not None:
        _plain.add(kind)
    return True


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """The operation that takes the elements of a chain in, and the function for it (`Kind.WRITE` and its like).

    `function` returns the function for the elements of a bundle that has started.
    """

    kind: Kind
    op: Any
    function: Callable[[], Callable[..., None]]


@dataclass(frozen=True, slots=True)
class SimpleStep:
    """A simple step: its function, Beam's `runner`, and the `receivers` of its outputs by tag (None: the main output).

    `following` is the next step of its chain.
    """

    name: str
    kind: Kind
    function: Callable[..., Any]
    runner: Any
    windowing: Any
    receivers: dict[str | None, Any]
    following: SimpleStep | None

    def to_the_end(self) -> Iterator[SimpleStep]:
        """This step and those that follow it in its chain."""
        yield self
        if self.following:
            yield from self.following.to_the_end()

    @property
    def length(self) -> int:
        """The number of steps from this one to the end of its chain."""
        return sum(1 for _ in self.to_the_end())


class Chain:
    """Simple steps with their operations.

    `end` takes the output of the last step; None if Beam's receiver does.
    `receiver` is Beam's receiver of the input if the chain counts the elements that it gets; None if they are counted.
    `behind` returns the receiver of the elements that a step's main output gets while they are outside of the chain.
    """

    def __init__(
        self,
        steps: Sequence[SimpleStep],
        ops: Sequence[Any],
        end: ChainEnd | None,
        receiver: Any,
        behind: Callable[[SimpleStep], common.Receiver],
    ) -> None:
        self._steps = steps
        self._end = end
        ends = [end] if end else []
        code = chain_code((*(step.kind for step in steps), *(each.kind for each in ends)))
        self._step_of_line = code.step_of_line
        outputs = [step.receivers[None] for step in steps]
        edges = [_Edge(receiver), *map(_Edge, outputs if end else outputs[:-1])]
        enter = [receiver.receive if receiver else ops[0].process, *(each.receive for each in outputs)]
        self._segments = [
            _Segment(
                [edges[edge] for edge in segment.edges if edges[edge].counters],
                enter[segment.first],
                [edges[edge] for edge in segment.edges if code.kinds[edge] is Kind.RETURNED],
            )
            for segment in code.segments
        ]
        bindings = {"out": enter[-1], "plain": _plain, "is_plain": is_plain, "fail": self._fail}
        for number, (step, op) in enumerate(zip(steps, ops, strict=True), 1):
            bindings[f"f_{number}"] = step.function
            bindings[f"enter_{number}"] = op.scoped_process_state.__enter__
            counted = [edges[edge] for edge in code.counted_before(number)]
            dispatch = bindings[f"dispatch_{number}"] = _dispatching(step, behind(step))
            bindings[f"leave_{number}"] = _leaving(dispatch, counted)
            bindings[f"through_{number}"] = op.process
            bindings[f"bypass_{number}"] = _leaving(op.process, counted)
        for each in ends:
            bindings[f"f_{len(steps) + 1}"] = None  # until `start`
            bindings[f"enter_{len(steps) + 1}"] = each.op.scoped_process_state.__enter__
        for number, edge in enumerate(edges):
            bindings[f"begin_{number}"], bindings[f"end_{number}"] = edge.begin, edge.end
        for names, segment in zip(code.segments, self._segments, strict=True):
            first = [*ops, *(each.op for each in ends)][names.first]
            bindings[f"exit_{names.first + 1}"] = first.scoped_process_state.__exit__
            bindings[f"settle_{names.first}"] = segment.settle
            bindings[f"grant_{names.first}"] = segment.grant
            bindings[f"check_{names.first}"] = segment.check
        made: dict[str, Any] = {}
        exec(code.code, made)
        self.run, self._left, self._bind = made["make"](**bindings)

    def start(self) -> None:
        """Start a bundle. Also a chain that is made in the middle of a bundle has to be started."""
        if self._end:
            self._bind(self._end.function())

    def settle(self) -> None:
        """Count the elements that stayed in the chain."""
        for segment, left in zip(self._segments, self._left(), strict=True):
            segment.settle(left)

    def _fail(self, error: BaseException) -> None:
        """Raise an exception of a step as Beam does: with the step's name, and logged."""
        # The traceback begins with the frames of the generated functions, the first of which calls this.
        at = error.__traceback__
        assert at is not None
        while at.tb_next is not None and at.tb_next.tb_frame.f_code.co_filename == FILENAME:
            at = at.tb_next
        step = self._step_of_line[at.tb_lineno]
        if step:
            self._steps[step - 1].runner._reraise_augmented(error)


class ChainReceiver(common.Receiver):
    """Takes the elements of a DoFn's output into a chain, one by one, and counts them as Beam's `receiver` does.

    `make` is called with the first element: a chain behind a rare output is not made without need.
    """

    def __init__(self, receiver: Any, make: Callable[[], Chain]) -> None:
        self.opcounter = receiver.opcounter
        self.flush = receiver.flush
        self._begin = receiver.update_counters_start
        self._end = receiver.update_counters_finish
        self._make = make
        self._run = self._make_and_run

    def receive(self, element: WindowedValue) -> None:
        """Run one element through the chain."""
        self._begin(element)
        # A copy, as a user's DoFn may have made the element, and may change and emit it again. What takes an element
        # of a chain in may tell by its identity that it is the one before (`GroupedWriter.put`).
        self._run((element.with_value(element.value),))
        self._end()

    def _make_and_run(self, elements: Iterable[WindowedValue]) -> None:
        self._run = self._make().run
        self._run(elements)


class _Edge:
    """The output of a step, or the input of a chain, with the counters of Beam's receiver.

    `left_early`: how many values that the segment has counted left the chain before they came to this edge.
    """

    def __init__(self, receiver: Any) -> None:
        self.counters: Any = receiver.opcounter if receiver else None
        self.begin = receiver.update_counters_start if receiver else _count_nothing
        self.end = receiver.update_counters_finish if receiver else _count_nothing
        self.left_early = 0


def _count_nothing(*_: WindowedValue) -> None:
    """Take the place of a counter."""


class _Segment:
    """Counts the values of neighbouring edges: `granted` may pass before Beam samples the size of one.

    `enter` takes an element into Beam's operations at the first edge. Beam checks the first result of the steps behind
    the edges `checked`.
    """

    def __init__(
        self, edges: Sequence[_Edge], enter: Callable[[WindowedValue], None], checked: Sequence[_Edge]
    ) -> None:
        self._edges = edges
        self._enter = enter
        self._checked = checked
        self._granted = 0

    def check(self, element: WindowedValue) -> bool:
        """Run an element through Beam's operations; return whether all results that Beam checks have been checked."""
        self._enter(element)
        # The operation behind an edge has got what Beam's receiver has counted. Without counters it is the first one.
        return all(edge.counters is None or edge.counters.element_counter.value() for edge in self._checked)

    def grant(self) -> int:
        """Return how many elements may pass from now on."""
        self._granted = min((_until_sample(edge.counters) for edge in self._edges), default=_ALL)
        return self._granted

    def settle(self, left: int) -> None:
        """Count the elements that have passed: the granted ones without the last `left`."""
        passed, self._granted = self._granted - left, left
        for edge in self._edges if passed else ():
            counted, edge.left_early = passed - edge.left_early, 0
            edge.counters.element_counter.update(counted)
            edge.counters._sample_counter += counted


def _until_sample(counters: Any) -> int:
    """How many elements may pass before Beam samples the size of one.

    Beam draws for each of the first elements whether it is a sample (`_next_sample` is 0), then the number of the next.
    """
    following: int = counters._next_sample
    return max(0, following - counters._sample_counter - 1) if following else 0


def _dispatching(step: SimpleStep, main: common.Receiver) -> Callable[[WindowedValue, Any], None]:
    """Return the function that handles an output as Beam does: it may have a tag, a timestamp or windows."""
    handler = common._OutputHandler(step.windowing.windowfn, main, step.receivers, None, None, False, False)
    return lambda element, output: handler.handle_process_outputs(element, (output,))


def _leaving(take: Callable[..., None], counted: Sequence[_Edge]) -> Callable[..., None]:
    """Return `take` for a value that leaves the chain, which the edges `counted` have counted already."""

    def leave(*value: Any) -> None:
        for edge in counted:
            edge.left_early += 1
        take(*value)

    return leave if counted else take
