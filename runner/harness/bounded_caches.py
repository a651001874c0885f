"""Bounds three caches of Beam's worker. Uses Beam's worker internals (read in 2.77).

Until a bundle ends, Beam keeps one object for each state of each key that the bundle has used, and in it the values
that the bundle has added. It keeps another object for each key that was looked up in a side input. A bundle here has as
many elements as a task gets in an epoch, or in a whole batch. An object takes about a kilobyte, so a million keys would
fill the worker's memory, and so would a million values that are added to one bag.

Not bounded: the values that a DoFn adds while it processes one element, and a set, which Beam reads as a whole.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

from apache_beam import coders
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.worker import bundle_processor
from apache_beam.transforms import userstate
from apache_beam.transforms.window import BoundedWindow

from penstock.runner.harness.shared_context import shared_by_threads

MAX_STATES = 10_000
"""Number of state objects at which a bundle writes its changes and drops the objects: about 10 MB."""

MAX_ADDED_BYTES = 4 << 20
"""Size of added values at which a bundle writes them: encoded, with `_VALUE_BYTES` for each value."""

_VALUE_BYTES = 100
"""What a value takes in memory besides its data, about: a small number has one byte encoded, and 36 in a list."""

_MEASURED = 16
"""At least one of so many added values is measured. Many coders encode a value to find its size."""


class _BoundedStates(bundle_processor.FnApiUserStateContext):
    """Writes states before the bundle ends if they take too much memory, as Beam does at the end of a bundle."""

    _key_and_window: tuple[Any, BoundedWindow] | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._changed: dict[_CountedBag | _CountedOrderedList, int] = {}
        """The states with values that are not written yet, and about how many bytes these values take."""
        self._added_bytes = 0
        """The sum of `_changed`."""
        self._unmeasured = 0
        self._next_measured = 1
        self._random = random.Random(0)

    def get_state(self, state_spec: userstate.StateSpec, key: Any, window: BoundedWindow) -> Any:
        # Write only here: Beam gets all states of an element or of a timer before it calls the DoFn. So no iterator of
        # a bag is in use.
        if self._added_bytes >= MAX_ADDED_BYTES:
            for state in list(self._changed):
                state.commit()
        # Drop objects only between two keys or windows: the DoFn uses the objects of one key and window together.
        if len(self._all_states) >= MAX_STATES and (key, window) != self._key_and_window:
            self.commit()
            self.reset()
        self._key_and_window = key, window
        return super().get_state(state_spec, key, window)

    def _create_state(self, state_spec: userstate.StateSpec, key: Any, window: BoundedWindow) -> Any:
        state = super()._create_state(state_spec, key, window)
        if isinstance(state_spec, userstate.BagStateSpec):
            return _CountedBag(self, state)
        if isinstance(state_spec, userstate.OrderedListStateSpec):
            return _CountedOrderedList(self, state, state_spec.coder)
        # Beam keeps a single value and an accumulator in a bag. Ten thousand large rows would fill the memory too.
        if isinstance(
            state, (bundle_processor.ReadModifyWriteRuntimeState, bundle_processor.CombiningValueRuntimeState)
        ):
            state._underlying_bag_state = _CountedBag(self, state._underlying_bag_state)
        return state

    def note_added(self, state: _CountedBag | _CountedOrderedList, coder: coders.Coder, value: Any) -> None:
        """Count a value that was added to a state."""
        self._unmeasured += 1
        size = 0
        if self._unmeasured >= self._next_measured:
            # The value stands for those since the last one that was measured.
            size = self._unmeasured * (_VALUE_BYTES + coder.estimate_size(value))
            # At random: with a fixed step, each measured value could belong to the smallest of several states.
            self._unmeasured, self._next_measured = 0, self._random.randint(1, _MEASURED)
        self._changed[state] = self._changed.get(state, 0) + size
        self._added_bytes += size

    def note_written(self, state: _CountedBag | _CountedOrderedList) -> None:
        """Note that a state has no values any more that are not written."""
        self._added_bytes -= self._changed.pop(state, 0)

    def reset(self) -> None:
        super().reset()
        self._changed, self._added_bytes = {}, 0


class _CountedBag(bundle_processor.SynchronousBagRuntimeState):
    """A bag that can be used after its changes were written."""

    _cleared: bool
    _added_elements: list[Any]

    def __init__(self, states: _BoundedStates, bag: bundle_processor.SynchronousBagRuntimeState) -> None:
        super().__init__(bag._state_handler, bag._state_key, bag._value_coder)
        self._states = states

    def add(self, value: Any) -> None:
        super().add(value)
        self._states.note_added(self, self._value_coder, value)

    def clear(self) -> None:
        super().clear()
        self._states.note_written(self)

    def commit(self) -> None:
        super().commit()
        # Beam's bag keeps what it has written, and would write it again. An earlier result of `read` refers to the same
        # list and, unless the bag was cleared before, also reads what is stored now.
        if self._cleared:
            self._cleared, self._added_elements = False, []
        else:
            self._added_elements.clear()
        self._states.note_written(self)


class _CountedOrderedList(bundle_processor.SynchronousOrderedListRuntimeState):
    """An ordered list whose added values are counted. Beam's class can be used after its changes were written."""

    def __init__(
        self,
        states: _BoundedStates,
        ordered: bundle_processor.SynchronousOrderedListRuntimeState,
        coder: coders.Coder,
    ) -> None:
        super().__init__(ordered._state_handler, ordered._state_key, coder)
        self._states, self._coder = states, coder

    def add(self, elem: tuple[Any, Any]) -> None:
        super().add(elem)
        self._states.note_added(self, self._coder, elem[1])

    def clear(self) -> None:
        super().clear()
        self._states.note_written(self)

    def commit(self) -> None:
        super().commit()
        self._states.note_written(self)


class _UncachedKeys(bundle_processor.StateBackedSideInputMap):
    """A side input that makes the values of a key available without keeping an object for the key."""

    def __getitem__(self, window: BoundedWindow) -> Any:
        data = self._side_input_data
        # Only a map keeps objects for keys. Beam's code for an iterable is right as it is.
        if data.access_pattern != common_urns.side_inputs.MULTIMAP.urn:
            return super().__getitem__(window)
        # From here on as in Beam's method (2.77), but with another class for the values by key.
        target = data.window_mapping_fn(window)
        if target not in self._cache:
            self._cache[target] = data.view_fn(
                _MultiMap(
                    self._state_handler,
                    self._transform_id,
                    self._tag,
                    self._target_window_coder.encode(target),
                    self._element_coder,
                )
            )
        return self._cache[target]


class _MultiMap:
    """The values of each key of one window. An iteration reads them from the side input."""

    def __init__(
        self, state_handler: Any, transform: str, tag: str | None, window: bytes, coder: Any
    ) -> None:
        self._state_handler = state_handler
        self._transform = transform
        self._tag = tag
        self._window = window
        self._key_coder = coder.key_coder().get_impl()
        self._value_coder = coder.value_coder()

    def __getitem__(self, key: Any) -> Any:
        state_key = beam_fn_api_pb2.StateKey(
            multimap_side_input=beam_fn_api_pb2.StateKey.MultimapSideInput(
                transform_id=self._transform,
                side_input_id=self._tag,
                window=self._window,
                key=self._key_coder.encode_nested(key),
            )
        )
        # The class that Beam's own map side input returns for a key.
        return bundle_processor._StateBackedIterable(self._state_handler, state_key, self._value_coder)


@shared_by_threads
@contextlib.contextmanager
def bounded_caches() -> Iterator[None]:
    """Operations that are made in this context keep a bounded number of objects for keys."""
    # Replace the names in Beam's module: Beam has no parameter for these classes. A context variable would not do,
    # because Beam makes the operations in another thread (`ExecutionTreeCreator`).
    before = bundle_processor.FnApiUserStateContext, bundle_processor.StateBackedSideInputMap
    bundle_processor.FnApiUserStateContext = _BoundedStates
    bundle_processor.StateBackedSideInputMap = _UncachedKeys
    try:
        yield
    finally:
        bundle_processor.FnApiUserStateContext, bundle_processor.StateBackedSideInputMap = before
