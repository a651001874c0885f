"""Merges the windows (sessions) of each key, when all its values have arrived. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from apache_beam.transforms.window import WindowFn

from penstock.runner.windows.grouping import CompleteGroup, unite_groups


class WindowMerger:
    """Merges the groups of each key with a window function. `coder` encodes its windows (nested)."""

    def __init__(self, windowfn: WindowFn, coder: Any) -> None:
        self._windowfn = windowfn
        self._coder = coder

    def merge_groups(self, groups: Iterable[CompleteGroup]) -> Iterator[CompleteGroup]:
        """Yield the groups of each key by merged window; `groups` come sorted by key."""
        for key, same in itertools.groupby(groups, key=lambda group: group.key):
            yield from self._of_key(key, list(same))

    def _of_key(self, key: bytes, groups: list[CompleteGroup]) -> Iterator[CompleteGroup]:
        windows = [self._coder.decode_nested(group.window) for group in groups]
        results = merge(self._windowfn, windows)
        together: dict[Any, list[CompleteGroup]] = {}
        for window, group in zip(windows, groups, strict=True):
            together.setdefault(results[window], []).append(group)
        for window, members in together.items():
            yield unite_groups(key, self._coder.encode_nested(window), members)


def merge(windowfn: WindowFn, windows: Iterable[Any]) -> dict[Any, Any]:
    """Return for each window the window that it is merged into; a window that is not merged maps to itself."""
    into: dict[Any, Any] = {}

    class Context(WindowFn.MergeContext):  # type: ignore[misc, unused-ignore]
        def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
            into.update((window, merge_result) for window in to_be_merged if window != merge_result)

    distinct = list(dict.fromkeys(windows))
    windowfn.merge(Context(distinct))
    return {window: _final_window(window, into) for window in distinct}


def _final_window(window: Any, into: dict[Any, Any]) -> Any:
    # A window function may merge in steps, so the result of one merge can be the input of another.
    while window in into:
        window = into[window]
    return window
