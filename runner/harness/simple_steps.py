"""Tells which DoFns use nothing but the element, and what their function is. Uses Beam's worker internals (2.77)."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from apache_beam.options.value_provider import RuntimeValueProvider
from apache_beam.transforms import core, userstate
from apache_beam.transforms.window import FixedWindows, GlobalWindow, GlobalWindows, WindowFn
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, WindowedValue

from penstock.runner.harness.chain_code import Kind

_WRAPPERS: dict[types.CodeType, Kind] = {
    core.Map(lambda element: element).fn._fn.__code__: Kind.MAP,
    # Beam uses another wrapper for a function that could take side inputs. Without any it does the same.
    core.Map(lambda element, *others: element).fn._fn.__code__: Kind.MAP,
    core.MapTuple(lambda key, value: key).fn._fn.__code__: Kind.MAP_TUPLE,
    core.Filter(lambda element: True).fn._fn.__code__: Kind.FILTER,
}
"""The code of the functions into which Beam wraps the user's, which make lists of results."""


def simple_function(fn: core.DoFn) -> tuple[Kind, Callable[..., Any]] | None:
    """Return how to run a DoFn that has no arguments but the element; None if it is not simple.

    These are the conditions under which Beam calls a DoFn without arguments through its `SimpleInvoker`
    (`common.DoFnInvoker.create_invoker`), and those under which an element is never part of a batch.
    """
    if "outputs_per_element_counter" in RuntimeValueProvider.experiments:
        return None
    if fn._process_batch_defined or getattr(fn.process, "_beam_yields_batches", False):
        return None
    if userstate.is_stateful_dofn(fn) or any(
        core.get_function_arguments(fn, method)[1] for method in ("process", "process_batch")
    ):
        return None
    # Beam checks the first result of `process` that is a method and no generator: no `str`, `bytes` or `dict`.
    is_checked = not isinstance(fn, core.CallableWrapperDoFn) and not inspect.isgeneratorfunction(fn.process)
    return _wrapped(fn) or (Kind.RETURNED if is_checked else Kind.FLAT, fn.process)


def window_function(windowfn: WindowFn) -> Callable[[WindowedValue], WindowedValue] | None:
    """Return what a WindowInto does to an element that is in one window, except for the value; None for most windows.

    The function returns an element as Beam's `WindowIntoDoFn` makes it (`bundle_processor.create_assign_windows`): with
    the same timestamp, a list of windows, and no pane.
    """
    # Not subclasses: they may override `assign`.
    if type(windowfn) is GlobalWindows:
        return _in_global_window
    return _in_fixed_windows(windowfn) if type(windowfn) is FixedWindows else None


def _in_global_window(element: WindowedValue) -> WindowedValue:
    made = element.with_value(None)
    made.windows, made.pane_info = [GlobalWindow()], PANE_INFO_UNKNOWN
    return made


def _in_fixed_windows(windowfn: FixedWindows) -> Callable[[WindowedValue], WindowedValue]:
    size_us, offset_us = windowfn.size.micros, windowfn.offset.micros
    window, start_us, end_us = None, 0, 0

    def assign(element: WindowedValue) -> WindowedValue:
        nonlocal window, start_us, end_us
        # Neighbours are often in one window.
        if not start_us <= element.timestamp_micros < end_us:
            (window,) = windowfn.assign(WindowFn.AssignContext(element.timestamp))
            start_us, end_us = window.start.micros, window.end.micros
            if (start_us - offset_us) % size_us:
                # A window at the end of time, whose bounds are cut: it says nothing about other timestamps.
                end_us = start_us
        made = element.with_value(None)
        made.windows, made.pane_info = [window], PANE_INFO_UNKNOWN
        return made

    return assign


def _wrapped(fn: core.DoFn) -> tuple[Kind, Callable[..., Any]] | None:
    """Return the user's function of a Map, MapTuple or Filter."""
    # Not a subclass: it may override `process`.
    if type(fn) is not core.CallableWrapperDoFn or fn.process is not fn._fn:
        return None
    wrapper = fn._fn
    kind = _WRAPPERS.get(wrapper.__code__) if isinstance(wrapper, types.FunctionType) else None
    if kind is None or wrapper.__closure__ is None:
        return None
    (cell,) = wrapper.__closure__
    return kind, cell.cell_contents
