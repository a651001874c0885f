"""Warnings that a pipeline's code gives in a worker. The driver shows them as if its own code had given them.

On a cluster, the standard error of a worker is in a log file of another machine, and each process would repeat them.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True)
class WorkerWarning:
    """A warning: its text, the line of code that gave it, and its pickled category.

    The category is None if the driver cannot import it.
    """

    category: bytes | None
    text: str
    filename: str
    line: int


@contextmanager
def collected_warnings(into: list[WorkerWarning]) -> Iterator[None]:
    """Collect the warnings that would be shown in this context, each once. Not for two threads at a time."""

    def keep(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        warning = WorkerWarning(_pickled(category), str(message), filename, lineno)
        if warning not in into:
            into.append(warning)

    # Not `warnings.catch_warnings`: it would undo filters that users' code sets in this context.
    before = warnings.showwarning
    warnings.showwarning = keep
    try:
        yield
    finally:
        warnings.showwarning = before


def show_warnings(given: Iterable[WorkerWarning]) -> None:
    """Give the warnings in this process. Its filters apply; by default each warning is shown once."""
    # Python notes in the registry of the module that warns which warnings it has shown. That module may not be imported
    # here, so the registry of this one serves all.
    registry = globals().setdefault("__warningregistry__", {})
    for warning in dict.fromkeys(given):
        category = UserWarning if warning.category is None else pickle.loads(warning.category)
        warnings.warn_explicit(warning.text, category, warning.filename, warning.line, registry=registry)


def _pickled(category: type[Warning]) -> bytes | None:
    """Return the pickled class; None if another process cannot import it."""
    # A class of `__main__` is not sent: in the driver `__main__` is another program.
    if category.__module__ == "__main__":
        return None
    try:
        return pickle.dumps(category)
    except (pickle.PicklingError, AttributeError):
        return None
