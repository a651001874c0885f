"""Warnings that a pipeline's code gives in a worker, shown by the driver as if they had been given there.

A worker's standard error is far away on a cluster, and each of its processes would say the same again.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning: its pickled category (None if the driver could not know it), its text, and where it was given."""

    category: bytes | None
    text: str
    filename: str
    line: int


@contextmanager
def kept(into: list[Warned]) -> Iterator[None]:
    """Collect, once each, the warnings that would be shown while this lasts. One at a time in a process."""

    def keep(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        warned = Warned(_pickled(category), str(message), filename, lineno)
        if warned not in into:
            into.append(warned)

    before = warnings.showwarning
    warnings.showwarning = keep
    try:
        yield
    finally:
        warnings.showwarning = before


def show(given: Iterable[Warned]) -> None:
    """Give the warnings here, by the filters of this process; by default each is shown once."""
    registry = globals().setdefault("__warningregistry__", {})
    for warned in dict.fromkeys(given):
        category = UserWarning if warned.category is None else pickle.loads(warned.category)
        warnings.warn_explicit(warned.text, category, warned.filename, warned.line, registry=registry)


def _pickled(category: type[Warning]) -> bytes | None:
    """None for a class that has no place outside this process."""
    if category.__module__ == "__main__":
        return None
    try:
        return pickle.dumps(category)
    except (pickle.PicklingError, AttributeError):
        return None
