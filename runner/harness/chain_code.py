"""Generates the Python function that runs a chain of steps over elements. Pure: see `chains.py` for what a chain is.

The function takes each element through all steps before it takes the next one, as Beam's operations do, so user code is
called in the same order. For a Filter and a Map it is, without the handling of errors:

    for element in elements:
        v0 = element.value
        if left_0:                            # how many values may still pass before Beam samples one
            left_0 -= 1
            enter_1()                         # metrics, log records and sampled time belong to step 1 now
            if f_1(v0):
                if left_1:                    # a Filter changes the number of values, so its output has another count
                    left_1 -= 1
                    enter_2()
                    v2 = f_2(v0)
                    if type(v2) in plain or is_plain(v2):
                        out(element.with_value(v2))
                    else:
                        leave_2(element, v2)  # a TaggedOutput or its like: Beam's code dispatches it
                    exit_2(None, None, None)
                else:
                    left_1 = sample_1(element, v0)
            exit_1(None, None, None)
        else:
            left_0 = sample_0(element, v0)

`sample_0` does the same for one value of edge 0, with a call of Beam's counters before and after each step, and goes on
with `rest_1(element, value)`, which has the code from `if left_1` on.

A chain with an end (`Kind.WRITE` and its like) has `f_3(element, v2)` in the place of `out(element.with_value(v2))`,
and counts the values of the last edge too.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import CodeType

FILENAME = "<penstock: a chain of steps>"
"""The file that tracebacks name for the generated functions."""


class Kind(enum.Enum):
    """How a step turns a value into its outputs; `f` is the user's function."""

    MAP = "f(value)"
    MAP_TUPLE = "f(*value)"
    FILTER = "value if f(value)"
    FLAT = "each of f(value)"
    RETURNED = "each of f(value), whose first result Beam checks"
    WINDOW = "value in the windows of f(element)"
    """For an element in one window. Beam calls the DoFn once for each window of an element."""
    WRITE = "f(element, value)"
    """The end of a chain in front of a writer, which has no operation state: it runs in the state of the last step."""
    COMBINE = "f(key, value, None)"
    """The end of a chain in front of a combiner in the default windowing. It has a state, and emits nothing."""
    COMBINE_IN_WINDOWS = "f(element, value), in a state"
    """The end of a chain in front of a combiner in another windowing."""

    @property
    def is_end(self) -> bool:
        """Whether it is no DoFn but the end of a chain."""
        return self in (Kind.WRITE, Kind.COMBINE, Kind.COMBINE_IN_WINDOWS)

    @property
    def is_one_to_one(self) -> bool:
        """Whether each value has exactly one output, so that the output need not be counted separately."""
        return self in (Kind.MAP, Kind.MAP_TUPLE, Kind.WINDOW)


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring edges of a chain, and the steps that get their values.

    Edge n is the output of step n, and edge 0 the input of the chain. All edges of a segment have the same number of
    values. The output of a chain without an end is in no segment.
    """

    edges: tuple[int, ...]
    is_checked: bool
    """Whether Beam checks the first result of one of the steps."""

    @property
    def first(self) -> int:
        """The first edge, which gives the segment its name."""
        return self.edges[0]


@dataclass(frozen=True, slots=True)
class ChainCode:
    """The code of a chain.

    - `code`: a module that defines `make`, which takes its bindings as keywords. It returns the function that runs
      elements, one that returns the numbers `left` of all segments, and one that replaces the function of the last step
      or end.
    - `kinds`: of the steps, and of the end if there is one.
    - `step_of_line`: the number of the step whose exceptions the line raises; 0 is the chain's input.
    """

    code: CodeType
    text: str
    kinds: tuple[Kind, ...]
    step_of_line: dict[int, int]
    segments: tuple[Segment, ...]

    def counted_before(self, step: int) -> tuple[int, ...]:
        """The edges that count an output of a step before it is made, as their segment begins before the step."""
        return next((s.edges[s.edges.index(step) :] for s in self.segments if step in s.edges[1:]), ())


@functools.cache
def chain_code(kinds: tuple[Kind, ...]) -> ChainCode:
    """Generate the code for steps of these kinds. The last one may be an end."""
    segments = _segments(kinds)
    lines = _Lines(kinds, segments)
    lines.write_module()
    text = "\n".join(lines.text)
    return ChainCode(compile(text, FILENAME, "exec"), text, kinds, lines.step_of_line, segments)


def _segments(kinds: Sequence[Kind]) -> tuple[Segment, ...]:
    edges: list[list[int]] = [[0]]
    for step, kind in enumerate(kinds[:-1], 1):
        if kind.is_one_to_one:
            edges[-1].append(step)
        else:
            edges.append([step])
    # Step n + 1 gets the values of edge n.
    return tuple(Segment(tuple(each), Kind.RETURNED in [kinds[edge] for edge in each]) for each in edges)


@dataclass(frozen=True, slots=True)
class _Value:
    """A value at an edge: the variable that has it, and the one that has an element with its timestamp and windows."""

    name: str
    element: str = "element"
    is_plain: bool = False
    """Whether it is known to be a plain element."""

    @property
    def as_element(self) -> str:
        """The expression for the value as an element."""
        return f"{self.element}.with_value({self.name})"


class _Lines:
    """Writes the lines of the code."""

    def __init__(self, kinds: Sequence[Kind], segments: Sequence[Segment]) -> None:
        self._kinds = kinds
        self._segments = {segment.first: segment for segment in segments}
        self.text: list[str] = []
        self.step_of_line: dict[int, int] = {}
        self._step = 0

    def write_module(self) -> None:
        """Write the function `make`."""
        steps, firsts = range(1, len(self._kinds) + 1), list(self._segments)
        of_dofns = ("leave", "dispatch", "through", "bypass")
        names = [
            f"{name}_{step}"
            for step, kind in zip(steps, self._kinds, strict=True)
            for name in ("f", "enter", *(() if kind.is_end else of_dofns))
        ]
        names += [f"{name}_{step - 1}" for step in steps for name in ("begin", "end")]
        names += [f"exit_{first + 1}" for first in firsts]
        names += [f"{name}_{first}" for first in firsts for name in ("settle", "grant", "check")]
        self._add(0, f"def make({', '.join(names)}, out, plain, is_plain, fail):")
        for first in firsts:
            self._add(1, f"left_{first}, checked_{first} = 0, {not self._segments[first].is_checked}")
        for first in firsts:
            self._write_sample(first)
        for first in firsts[1:]:
            self._write_rest(first)
        self._write_run()
        self._add(1, "def bind(function):")
        self._add(2, f"nonlocal f_{steps[-1]}")
        self._add(2, f"f_{steps[-1]} = function")
        self._add(1, f"return run, lambda: ({', '.join(f'left_{first}' for first in firsts)},), bind")

    def _write_run(self) -> None:
        self._step = 0
        self._add(1, "def run(elements):")
        self._add_nonlocal()
        self._add(2, "try:")
        self._add(3, "for element in elements:")
        self._add(4, "v0 = element.value")
        self._write_segment(4, 0, _Value("v0"))
        self._write_except("fail(error)")

    def _write_rest(self, first: int) -> None:
        """Write the function that takes a value of the first edge of a segment to the end of the chain."""
        self._step = 0
        self._add(1, f"def rest_{first}(element, v{first}):")
        self._add_nonlocal()
        self._add(2, "try:")
        self._write_segment(3, first, _Value(f"v{first}", is_plain=True))
        self._write_except()

    def _write_sample(self, first: int) -> None:
        """Write the function that takes a value through a segment with Beam's counters."""
        self._step = first
        value = _Value(f"v{first}", is_plain=first > 0)
        self._add(1, f"def sample_{first}(element, {value.name}):")
        self._add_nonlocal()
        if self._segments[first].is_checked:
            self._add(2, f"if not checked_{first}:")
            self._add(3, f"checked_{first} = check_{first}({value.as_element})")
            self._add(3, "return 0")
        self._add(2, f"settle_{first}(0)")
        self._add(2, "try:")
        self._write_counted(3, first, value)
        self._write_except()
        self._add(2, f"return grant_{first}()")

    # The parts of a function. Each gets a value of an edge.

    def _write_segment(self, depth: int, edge: int, value: _Value) -> None:
        """Write what happens to a value of an edge with which a segment begins, or of the chain's output."""
        if edge == len(self._kinds):
            self._write_out(depth, edge, value)
            return
        self._step = edge
        self._add(depth, f"if left_{edge}:")
        self._add(depth + 1, f"left_{edge} -= 1")
        self._write_next(depth + 1, edge, value)
        self._step = edge
        self._add(depth, "else:")
        self._add(depth + 1, f"left_{edge} = sample_{edge}({value.element}, {value.name})")

    def _write_next(self, depth: int, edge: int, value: _Value) -> None:
        """Write what happens to a value in the middle of a segment, or of the chain's output."""
        if edge == len(self._kinds):
            self._write_out(depth, edge, value)
        else:
            self._write_step(depth, edge, value, _COUNTED_TOGETHER, self._write_next, self._write_segment)

    def _write_counted(self, depth: int, edge: int, value: _Value) -> None:
        """Write what happens to a value of which Beam's counters may take a sample."""
        if edge == len(self._kinds):
            self._write_out(depth, edge, value)
            return
        self._step = edge
        self._add(depth, f"begin_{edge}({value.as_element})")
        self._write_step(depth, edge, value, _COUNTED_ONE_BY_ONE, self._write_counted, self._write_call)
        self._step = edge
        self._add(depth, f"end_{edge}()")

    def _write_call(self, depth: int, edge: int, value: _Value) -> None:
        """Write the calls for a value of the first edge of the next segment, or for one of the chain's output."""
        if edge == len(self._kinds):
            self._write_out(depth, edge, value)
            return
        # Not only `rest`, which would call `sample`: Python nests at most 1,000 calls, and a pipeline has many steps.
        arguments = f"{value.element}, {value.name}"
        self._add(depth, f"if left_{edge}: rest_{edge}({arguments})")
        self._add(depth, f"else: left_{edge} = sample_{edge}({arguments})")

    def _write_out(self, depth: int, edge: int, value: _Value) -> None:
        self._step = edge
        self._add(depth, f"out({value.as_element})")

    def _write_step(
        self, depth: int, edge: int, value: _Value, ways_out: _WaysOut, then: _Write, then_segment: _Write
    ) -> None:
        """Write the step that gets the values of an edge.

        `then` writes the code for an output of a step with one output, `then_segment` that for outputs of other steps.
        """
        step = self._step = edge + 1
        kind = self._kinds[edge]
        if kind.is_end:
            self._write_end(depth, edge, value)
            return
        if kind is Kind.WINDOW:
            self._add(depth, f"if len({value.element}.windows) != 1:")
            self._add(depth + 1, f"{ways_out.around}_{step}({value.as_element})")
            self._add(depth, "else:")
            depth += 1
        self._add(depth, f"enter_{step}()")
        if kind is Kind.WINDOW:
            self._add(depth, f"e{step} = f_{step}({value.element})")
            then(depth, step, replace(value, element=f"e{step}"))
        elif kind is Kind.FILTER:
            self._add(depth, f"if f_{step}({value.name}):")
            self._write_plain(depth + 1, step, value, ways_out, then_segment)
        elif kind in (Kind.FLAT, Kind.RETURNED):
            self._add(depth, f"r{step} = f_{step}({value.name})")
            # Not "or ()": Beam iterates over anything but None, and a 0 is an error.
            self._add(depth, f"if r{step} is not None:")
            self._add(depth + 1, f"for v{step} in r{step}:")
            # Of many outputs each would cost a call, so the code of the next segment is here also for a sampled value.
            each = _Value(f"v{step}", value.element)
            self._write_plain(depth + 2, step, each, ways_out, self._write_segment)
            self._step = step
            self._add(depth + 1, f"r{step} = None")
        else:
            star = "*" if kind is Kind.MAP_TUPLE else ""
            self._add(depth, f"v{step} = f_{step}({star}{value.name})")
            self._write_plain(depth, step, _Value(f"v{step}", value.element), ways_out, then)
        self._step = step
        if edge in self._segments:
            # Back to the state before. The steps in between need not be left: entering the next one is enough.
            self._add(depth, f"exit_{step}(None, None, None)")

    def _write_end(self, depth: int, edge: int, value: _Value) -> None:
        """Write the end of the chain. As in Beam, its exceptions belong to the last step."""
        self._step, end = edge, edge + 1
        has_state = self._kinds[edge] is not Kind.WRITE
        if has_state:
            self._add(depth, f"enter_{end}()")
        if self._kinds[edge] is Kind.COMBINE:
            self._add(depth, f"key, value = {value.name}")
            self._add(depth, f"f_{end}(key, value, None)")
        else:
            self._add(depth, f"f_{end}({value.element}, {value.name})")
        if has_state and edge in self._segments:
            self._add(depth, f"exit_{end}(None, None, None)")

    def _write_plain(self, depth: int, step: int, value: _Value, ways_out: _WaysOut, then: _Write) -> None:
        """Write `then` for a plain element, and what happens to another output."""
        if value.is_plain:
            then(depth, step, value)
            return
        # A metaclass may make a class that cannot be hashed.
        self._add(depth, f"try: known = type({value.name}) in plain")
        self._add(depth, "except TypeError: known = False")
        self._add(depth, f"if known or is_plain({value.name}):")
        then(depth + 1, step, replace(value, is_plain=True))
        self._step = step
        self._add(depth, "else:")
        self._add(depth + 1, f"{ways_out.leave}_{step}({value.element}, {value.name})")

    def _add_nonlocal(self) -> None:
        self._add(2, f"nonlocal {', '.join(f'left_{each}, checked_{each}' for each in self._segments)}")

    def _write_except(self, *lines: str) -> None:
        """Write what happens to an exception: `lines`, and it is raised again."""
        self._step = 0
        self._add(2, "except BaseException as error:")
        flat = [f"r{step}" for step, kind in enumerate(self._kinds, 1) if kind in (Kind.FLAT, Kind.RETURNED)]
        if flat:
            # The traceback keeps this frame. Beam's frames keep nothing, so the `finally` of a generator runs at once.
            self._add(3, f"{' = '.join(flat)} = None")
        for line in (*lines, "raise"):
            self._add(3, line)

    def _add(self, depth: int, line: str) -> None:
        self.text.append(" " * depth + line)
        self.step_of_line[len(self.text)] = self._step


_Write = Callable[[int, int, _Value], None]


@dataclass(frozen=True, slots=True)
class _WaysOut:
    """The functions that are called for a value that leaves the chain: as an output of a step, or around a step."""

    leave: str
    around: str


_COUNTED_TOGETHER = _WaysOut("leave", "bypass")
"""The edges of the segment have counted the value already."""
_COUNTED_ONE_BY_ONE = _WaysOut("dispatch", "through")
"""Each edge counts the value when it comes to it."""
