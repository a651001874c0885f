"""Bounds two caches of Beam's worker. Uses Beam's worker internals (read in 2.77).

Until a bundle ends, Beam keeps one object for each state of each key that the bundle has used. It keeps another one for
each key that was looked up in a side input. A bundle here has as many keys as a task gets in an epoch, or in a whole
batch.
Each object takes about a kilobyte, so a million keys would fill the worker's memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.worker import bundle_processor
from apache_beam.transforms import userstate
from apache_beam.transforms.window import BoundedWindow

MAX_STATES = 10_000
"""Number of state objects at which a bundle writes its changes and drops the objects: about 10 MB."""


class _BoundedStates(bundle_processor.FnApiUserStateContext):
    """Writes the states of earlier keys when there are too many, as Beam does at the end of a bundle."""

    _place: tuple[Any, BoundedWindow] | None = None

    def get_state(self, state_spec: userstate.StateSpec, key: Any, window: BoundedWindow) -> Any:
        # Write only between two keys or windows: Beam gets all states of an element or of a timer before it calls the
        # DoFn, which then uses these objects together.
        if len(self._all_states) >= MAX_STATES and (key, window) != self._place:
            self.commit()
            self.reset()
        self._place = key, window
        return super().get_state(state_spec, key, window)


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
