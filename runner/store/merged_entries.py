"""Entries of several sorted sources as one: the newest entry of a key counts. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TypeVar

from penstock.runner.store.runs import ABSENT, Entry, Run, key_of

Value = TypeVar("Value")


def newest_value(
    runs: Iterator[Run], key: bytes, read: Callable[[Run, bytes], Value | object | None]
) -> Value | None:
    """Return what `read` finds in the first run that contains the key: None if that is a tombstone, or no run does."""
    for run in runs:
        value = read(run, key)
        if value is not ABSENT:
            return value  # type: ignore[return-value]  # ABSENT is the only other object
    return None


def live_entries(
    buffered: Sequence[Entry], runs: Sequence[Iterator[Entry]]
) -> Iterator[tuple[int, bytes, bytes]]:
    """Merge buffer and runs (newest first); the newest entry of a key wins."""
    sources = [buffered, *runs] if buffered else list(runs)
    for key, value in newest_entries(sources):
        if value is not None:
            yield *key_of(key), value


def newest_entries(sources: Sequence[Iterable[Entry]]) -> Iterator[Entry]:
    """Merge sources of ascending entries (newest first); yield the newest entry of each key, tombstones included."""
    before = None
    for entry in heapq.merge(*sources, key=itemgetter(0)):  # equal keys come in the order of sources
        if entry[0] != before:
            yield entry
        before = entry[0]
