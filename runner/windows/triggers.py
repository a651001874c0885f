"""Triggers as state machines over Beam's trigger proto: they decide when a window's pane is due. Pure.

One `TriggerTree` serves all windows of a grouping. Its state for one window is a `TriggerState`, which is small and
serialisable, and is deleted with the window. The rules come from the Beam model (the proto's comments and Java's
reference state machines):

- A finished trigger stays finished unless its parent resets it.
- A composite that fires resets the triggers that it repeats.
- A count towards a pane starts again when that pane fires, for every trigger of the tree.
- When windows merge, a trigger that had finished in only some of them is active again.

Times are µs since the epoch. The end of a window is its last timestamp, and it is reached when the watermark is *above*
it. A delay in processing time ends when the clock reaches it.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from apache_beam.portability.api import beam_runner_api_pb2 as api


@dataclass(slots=True)
class TriggerState:
    """The state of a trigger tree for one window: which triggers have finished, and a number for some, by node."""

    finished: set[int] = field(default_factory=set)
    numbers: dict[int, int] = field(default_factory=dict)

    def to_json(self) -> list[object]:
        """Return the state as a JSON value."""
        return [sorted(self.finished), {str(node): number for node, number in sorted(self.numbers.items())}]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> TriggerState:
        """The inverse of `to_json`."""
        finished, numbers = value
        return cls(set(finished), {int(node): number for node, number in numbers.items()})


@dataclass(frozen=True, slots=True)
class TriggerContext:
    """The values with which a trigger is evaluated. Times in µs; `end_us` is the window's last timestamp."""

    watermark_us: int
    now_us: int
    end_us: int

    @property
    def at_end(self) -> bool:
        """Whether the watermark has passed the window."""
        return self.watermark_us > self.end_us


class TriggerTree:
    """A trigger with its subtriggers. `merging` says whether windows may merge under it."""

    def __init__(self, trigger: api.Trigger, *, merging: bool) -> None:
        self._nodes: list[_Node] = []
        self._merging = merging
        self._root = self._build(trigger)
        self.shape = zlib.crc32(_shape(trigger).encode())
        """A checksum of the kinds of trigger in the tree and of their order. A state is valid for one shape only."""

    def _build(self, trigger: api.Trigger) -> _Node:
        kind = trigger.WhichOneof("trigger") or "default"
        if kind not in _KINDS:
            raise NotImplementedError(f"the trigger {kind} is not one that this runner knows")
        node, subtriggers = _KINDS[kind](getattr(trigger, kind))
        # Numbered from the root downwards. State in a checkpoint refers to these numbers; see `shape`.
        node.index, node.merging = len(self._nodes), self._merging
        self._nodes.append(node)
        node.children = [self._build(child) for child in subtriggers]
        return node

    def finished(self, state: TriggerState) -> bool:
        """Whether no pane can fire any more: the window is closed."""
        return self._root.finished(state)

    def on_elements(self, state: TriggerState, at: TriggerContext, count: int) -> None:
        """Record `count` new elements in the window."""
        if not self.finished(state):
            self._root.on_elements(state, at, count)

    def should_fire(self, state: TriggerState, at: TriggerContext) -> bool:
        """Whether a pane is due."""
        return not self.finished(state) and self._root.should_fire(state, at)

    def on_fire(self, state: TriggerState, at: TriggerContext) -> None:
        """Record that a pane fired because of `should_fire`."""
        self._root.on_fire(state, at)

    def merge_states(self, states: Sequence[TriggerState], at: TriggerContext) -> TriggerState:
        """Return the state of a window into which several windows with these states were merged."""
        into = TriggerState()
        self._root.on_merge(into, states, at)
        return into

    def wake_us(self, state: TriggerState, now_us: int) -> int | None:
        """The next processing time after `now_us` at which to evaluate the trigger again; None if there is none."""
        times = (node.due_us(state) for node in self._nodes)
        # Only times after `now_us`: `should_fire` has already considered the others. A timer for one of those would
        # fire again and again.
        return min((time for time in times if time is not None and time > now_us), default=None)

    def set_back(self, state: TriggerState, back_us: int) -> None:
        """Move processing times to earlier ones, as the wall clock was set back by `back_us`."""
        for node in self._nodes:
            if node.due_us(state) is not None:
                state.numbers[node.index] -= back_us


class _Node(ABC):
    """One trigger. It changes only its own entry of a state, and the entries of its subtriggers."""

    index: int
    merging: bool
    children: list[_Node]

    def finished(self, state: TriggerState) -> bool:
        return self.index in state.finished

    def set_finished(self, state: TriggerState, finished: bool) -> None:
        (state.finished.add if finished else state.finished.discard)(self.index)

    def on_elements(self, state: TriggerState, at: TriggerContext, count: int) -> None:
        for child in self.children:
            if not child.finished(state):
                child.on_elements(state, at, count)

    @abstractmethod
    def should_fire(self, state: TriggerState, at: TriggerContext) -> bool: ...

    @abstractmethod
    def on_fire(self, state: TriggerState, at: TriggerContext) -> None: ...

    def on_merge(self, into: TriggerState, states: Sequence[TriggerState], at: TriggerContext) -> None:
        for child in self.children:
            child.on_merge(into, states, at)

    def clear(self, state: TriggerState) -> None:
        """Reset the counts towards the next pane, also of subtriggers. Finished triggers stay finished."""
        state.numbers.pop(self.index, None)
        for child in self.children:
            child.clear(state)

    def reset(self, state: TriggerState) -> None:
        """Reset this trigger and its subtriggers to the start."""
        self.clear(state)
        self.set_finished(state, False)
        for child in self.children:
            child.reset(state)

    def due_us(self, state: TriggerState) -> int | None:
        """The processing time that it waits for."""
        return None

    def finished_in_any(self, states: Sequence[TriggerState]) -> bool:
        return any(self.finished(state) for state in states)

    def _unfinished(self, state: TriggerState) -> _Node | None:
        return next((child for child in self.children if not child.finished(state)), None)


class _Default(_Node):
    """Fires when the watermark has passed the window, and again for later elements."""

    # No count of elements is needed: `Panes` emits a late pane only if elements have come since the last pane.
    def should_fire(self, state: TriggerState, at: TriggerContext) -> bool:
        return at.at_end

    def on_fire(self, state: TriggerState, at: TriggerContext) -> None:
        """It never finishes."""


class _Always(_Node):
    """Fires after each element."""

    def on_elements(self, state: TriggerState, at: TriggerContext, count: int) -> None:
        state.numbers[self.index] = 1

    def should_fire(self, state: TriggerState, at: TriggerContext) -> bool:
        return self.index in state.numbers

    def on_fire(self, state: TriggerState, at: TriggerContext) -> None:
        self.clear(state)

    def on_merge(self, into: TriggerState, states: Sequence[TriggerState], at: TriggerContext) -> None:
        if any(self.index in state.numbers for state in states):
            into.numbers[self.index] = 1


class _Never(_Default):
    """Does not fire. `Panes` emits the elements when the window expires."""

    def should_fire(self, state: TriggerState, at: TriggerContext) -> bool:
        return False


class _ElementCount(_Node):
    """Fires once, when a pane has at least `count` elements. Its number is the count so far."""

    def __init__(self, count: int) -> None:
        self._count = count

    def on_elements(self, state: TriggerState, at: TriggerContext, count: int) -> None:
        state.numbers[self.index] = state.numbers.get(self.index, 0) + count

    def should_fire(self, state: TriggerState, at: TriggerContext) -> bool:
        return state.numbers.get(self.index, 0) >= self._count

    def on_fire(self, state: TriggerState, at: TriggerContext) -> None:
        self.clear(state)
        self.set_finished(state, True)

    def on_merge(self, into: TriggerState, states: Sequence[TriggerState], at: TriggerContext) -> None:
        if self.finished_in_any(states):
            self.set_finished(into, True)
        elif total := sum(state.numbers.get(self.index, 0) for state in states):
            into.numbers[self.index] = total


class _AfterProcessingTime(_Node):
    """Fires once, at a processing time that the pane's first element determines. Its number is that time, in µs."""

    def __init__(self, transforms: Sequence[api.TimestampTransform]) -> None:
        self._transforms = transforms

    def on_elements(self, state: TriggerState, at: TriggerContext, count: int) -> None:
        state.numbers.setdefault(self.index, self._delayed(at.now_us))

    def should_fire(self, state: TriggerState, at: TriggerContext) -> bool:
        due = state.numbers.get(self.index)
        return due is not None and due <= at.now_us

    def on_fire(self, state: TriggerState, at: TriggerContext) -> None:
        self.clear(state)
        self.set_finished(state, True)

    def on_merge(self, into: TriggerState, states: Sequence[TriggerState], at: TriggerContext) -> None:
        if self.finished_in_any(states):
            self.set_finished(into, True)
        elif due := [state.numbers[self.index] for state in states if self.index in state.numbers]:
            into.numbers[self.index] = min(due)

    def due_us(self, state: TriggerState) -> int | None:
        return state.numbers.get(self.index)

    def _delayed(self, time_us: int) -> int:
        for transform in self._transforms:
            if transform.HasField("delay"):
                time_us += transform.delay.delay_millis * 1000
            elif transform.HasField("align_to"):
                offset, period = transform.align_to.offset * 1000, transform.align_to.period * 1000
                # The next multiple of the period after the offset, or `time_us` if it is one: `//` rounds the negative
                # quotient down.
                time_us = offset - (offset - time_us) // period * period
        return time_us


class _AfterEndOfWindow(_Node):
    """Fires repeated early panes, one pane when the watermark has passed the window, then repeated late panes."""

    def __init__(self, *, early: bool, late: bool) -> None:
        self._early = early
        self._late = late

    def should_fire(self, state: TriggerState, at: TriggerContext) -> bool:
        if self._is_late(state):
            late = self._late_trigger()
            return late is not None and late.should_fire(state, at)
        early = self._early_trigger()
        return at.at_end or (early is not None and early.should_fire(state, at))

    def on_elements(self, state: TriggerState, at: TriggerContext, count: int) -> None:
        for child in self._counting_children(state):
            child.on_elements(state, at, count)

    def on_fire(self, state: TriggerState, at: TriggerContext) -> None:
        early, late = self._early_trigger(), self._late_trigger()
        if at.at_end and not self._is_late(state):
            # The on-time pane ends the early firings. What they counted, or how often they have finished, means nothing
            # to the late ones.
            state.numbers[self.index] = 1
            for child in self.children:
                child.reset(state)
            self.set_finished(state, late is None)
            return
        firing, other = (late, early) if self._is_late(state) else (early, late)
        assert firing is not None
        firing.on_fire(state, at)
        if firing.finished(state):
            firing.reset(state)
        # A pane ends the count towards the next pane of every trigger, also of the one that did not fire.
        if other is not None:
            other.clear(state)

    def on_merge(self, into: TriggerState, states: Sequence[TriggerState], at: TriggerContext) -> None:
        early, late = self._early_trigger(), self._late_trigger()
        # The merged window may end later than its parts. Until the watermark has passed its end, its on-time pane is
        # still to come, even if each part has fired one.
        if at.at_end and all(self._is_late(state) for state in states):
            into.numbers[self.index] = 1
            self.set_finished(into, late is None)
            if late is not None:
                late.on_merge(into, states, at)
        elif early is not None:
            early.on_merge(into, states, at)

    def clear(self, state: TriggerState) -> None:
        # Keeps this node's number, unlike other triggers: that the on-time pane has fired is no count.
        for child in self.children:
            child.clear(state)

    def reset(self, state: TriggerState) -> None:
        super().reset(state)
        state.numbers.pop(self.index, None)

    def _is_late(self, state: TriggerState) -> bool:
        # The number of this node is 1 once the on-time pane has fired and only late panes can follow.
        return bool(state.numbers.get(self.index))

    def _early_trigger(self) -> _Node | None:
        return self.children[0] if self._early else None

    def _late_trigger(self) -> _Node | None:
        return self.children[-1] if self._late else None

    def _counting_children(self, state: TriggerState) -> list[_Node]:
        """The subtriggers that count new elements."""
        # A late window may be merged into one that is still early. So under merging windows every subtrigger counts:
        # only the next merge decides which one is current.
        if self.merging:
            return self.children
        child = self._late_trigger() if self._is_late(state) else self._early_trigger()
        return [] if child is None else [child]


class _Composite(_Node):
    """A trigger with several subtriggers. After a merge of windows it has finished if `enough` of them have."""

    enough: Callable[[Iterable[bool]], bool] = staticmethod(any)

    def on_merge(self, into: TriggerState, states: Sequence[TriggerState], at: TriggerContext) -> None:
        super().on_merge(into, states, at)
        self.set_finished(into, self.enough(child.finished(into) for child in self.children))


class _AfterAll(_Composite):
    """Fires once, when each subtrigger has finished or would fire."""

    enough = staticmethod(all)

    def should_fire(self, state: TriggerState, at: TriggerContext) -> bool:
        return all(child.finished(state) or child.should_fire(state, at) for child in self.children)

    def on_fire(self, state: TriggerState, at: TriggerContext) -> None:
        for child in self.children:
            if not child.finished(state):
                child.on_fire(state, at)
        self.clear(state)
        self.set_finished(state, True)


class _AfterAny(_Composite):
    """Fires once, when one of its subtriggers would fire."""

    def should_fire(self, state: TriggerState, at: TriggerContext) -> bool:
        return any(child.should_fire(state, at) for child in self.children if not child.finished(state))

    def on_fire(self, state: TriggerState, at: TriggerContext) -> None:
        for child in self.children:
            if not child.finished(state) and child.should_fire(state, at):
                child.on_fire(state, at)
            else:
                child.clear(state)
        self.set_finished(state, any(child.finished(state) for child in self.children))


class _AfterEach(_Composite):
    """Fires as its subtriggers do, one after the other, each until it has finished."""

    enough = staticmethod(all)

    def on_elements(self, state: TriggerState, at: TriggerContext, count: int) -> None:
        current = self._unfinished(state)
        # Under merging windows all subtriggers count, as in `_AfterEndOfWindow._counting_children`: a merge may make an
        # earlier subtrigger the current one.
        for child in self.children if self.merging else [current] if current else []:
            if not child.finished(state):
                child.on_elements(state, at, count)

    def should_fire(self, state: TriggerState, at: TriggerContext) -> bool:
        current = self._unfinished(state)
        return current is not None and current.should_fire(state, at)

    def on_fire(self, state: TriggerState, at: TriggerContext) -> None:
        current = self._unfinished(state)
        assert current is not None
        current.on_fire(state, at)
        # Under merging windows later subtriggers have counted the elements of this pane too.
        if self.merging:
            for child in self.children:
                child.clear(state)
        self.set_finished(state, self._unfinished(state) is None)


class _OrFinally(_AfterAny):
    """Fires as its first subtrigger does, until the second one would fire. That pane is the last."""

    def on_fire(self, state: TriggerState, at: TriggerContext) -> None:
        main, until = self.children
        # Asked first: if both would fire, the pane is the last one.
        if until.should_fire(state, at):
            until.on_fire(state, at)
            self.set_finished(state, True)
            self.clear(state)
            return
        main.on_fire(state, at)
        self.set_finished(state, main.finished(state))


class _Repeat(_Node):
    """Fires as its subtrigger does, and resets the subtrigger each time that it finishes."""

    def should_fire(self, state: TriggerState, at: TriggerContext) -> bool:
        return self.children[0].should_fire(state, at)

    def on_fire(self, state: TriggerState, at: TriggerContext) -> None:
        (child,) = self.children
        child.on_fire(state, at)
        if child.finished(state):
            child.reset(state)

    def on_merge(self, into: TriggerState, states: Sequence[TriggerState], at: TriggerContext) -> None:
        super().on_merge(into, states, at)
        if self.children[0].finished(into):
            self.children[0].reset(into)


def _shape(trigger: api.Trigger) -> str:
    kind = trigger.WhichOneof("trigger") or "default"
    _, subtriggers = _KINDS[kind](getattr(trigger, kind))
    return f"{kind}({','.join(map(_shape, subtriggers))})"


def _after_end(proto: api.Trigger.AfterEndOfWindow) -> tuple[_Node, list[api.Trigger]]:
    early, late = proto.HasField("early_firings"), proto.HasField("late_firings")
    children = ([proto.early_firings] if early else []) + ([proto.late_firings] if late else [])
    return _AfterEndOfWindow(early=early, late=late), children


_KINDS: dict[str, Callable[..., tuple[_Node, list[api.Trigger]]]] = {
    "default": lambda proto: (_Default(), []),
    "always": lambda proto: (_Always(), []),
    "never": lambda proto: (_Never(), []),
    "element_count": lambda proto: (_ElementCount(proto.element_count), []),
    "after_processing_time": lambda proto: (_AfterProcessingTime(proto.timestamp_transforms), []),
    # In Beam's model this waits until the clocks of the producing workers have reached a time. Here these workers have
    # already ended their part of the epoch when their elements arrive, so there is no delay.
    "after_synchronized_processing_time": lambda proto: (_AfterProcessingTime([]), []),
    "after_end_of_window": _after_end,
    "after_all": lambda proto: (_AfterAll(), list(proto.subtriggers)),
    "after_any": lambda proto: (_AfterAny(), list(proto.subtriggers)),
    "after_each": lambda proto: (_AfterEach(), list(proto.subtriggers)),
    "or_finally": lambda proto: (_OrFinally(), [proto.main, getattr(proto, "finally")]),
    "repeat": lambda proto: (_Repeat(), [proto.subtrigger]),
}
