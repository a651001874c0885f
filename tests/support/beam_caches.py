"""Caches in Beam, for a test process that builds thousands of pipelines. What is built stays the same.

Beam (read in 2.77) makes an argument parser for each view of a pipeline's options, two hundred times for a pipeline of
forty steps, inspects all methods of each DoFn seven times, and looks in them for states and timers as often. This is
70 % of the time that building a pipeline takes.
"""

from __future__ import annotations

import copy
import sys
import types
from argparse import Namespace
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core, userstate

_Arguments = tuple[list[str], list[Any]]
_Specs = tuple[set[userstate.StateSpec], set[userstate.TimerSpec]]


def cache_beam() -> None:
    """Cache in this process what Beam works out again for each pipeline."""
    PipelineOptions.view_as = _view_as
    core.get_function_args_defaults = _cached_arguments(core.get_function_args_defaults)
    userstate.get_dofn_specs = _cached_specs(userstate.get_dofn_specs)


_PARSED: dict[tuple[type, tuple[str, ...]], Namespace] = {}


def _view_as(self: Any, cls: type) -> Any:
    """Beam's method, with the parsed flags of an earlier view of the class. A value of several views is one object."""
    flags = tuple(sys.argv[1:] if self._flags is None else self._flags)
    parsed = _PARSED.get((cls, flags))
    if parsed is None:
        parsed = _PARSED[cls, flags] = cls(self._flags)._visible_options  # type: ignore[attr-defined]
    for name, value in vars(parsed).items():
        if name not in self._all_options:
            self._all_options[name] = copy.copy(value)  # else two pipelines would share a list
    view = cls.__new__(cls)
    view._flags, view._visible_options, view._all_options = self._flags, parsed, self._all_options  # type: ignore[attr-defined]
    return view


def _cached_arguments(inspect: Callable[[Any], _Arguments]) -> Callable[[Any], _Arguments]:
    known: WeakKeyDictionary[types.FunctionType, _Arguments] = WeakKeyDictionary()

    def arguments(method: Any) -> _Arguments:
        # The arguments of a bound method do not depend on its object.
        function = getattr(method, "__func__", None)
        if not isinstance(method, types.MethodType) or not isinstance(function, types.FunctionType):
            return inspect(method)
        if function not in known:
            known[function] = inspect(method)
        names, defaults = known[function]
        return list(names), list(defaults)

    return arguments


def _cached_specs(inspect: Callable[[Any], _Specs]) -> Callable[[Any], _Specs]:
    known: WeakKeyDictionary[type, _Specs] = WeakKeyDictionary()

    def specs(dofn: Any) -> _Specs:
        kind = type(dofn)
        if _may_differ(dofn):
            return inspect(dofn)
        if kind not in known:
            known[kind] = inspect(dofn)
        states, timers = known[kind]
        return set(states), set(timers)

    return specs


def _may_differ(dofn: Any) -> bool:
    """Tell whether two DoFns of the class may have other methods: as attributes of the object, or as properties."""
    own = any(isinstance(value, types.MethodType) for value in vars(dofn).values())
    return own or _has_properties(type(dofn))


@lru_cache(maxsize=4096)
def _has_properties(kind: type) -> bool:
    return any(isinstance(value, property) for each in kind.__mro__ for value in vars(each).values())
