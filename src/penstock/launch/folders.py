"""Check that the folders of a pipeline are separate: output, dead letters, checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from penstock.errors import UsageError
from penstock.object_stores.location import Location, locate

FOLDERS = ("output", "dead_letters", "checkpoint_dir")
"""The parameters and options that are folders to write to."""


def any_folder_conflict(values: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the folders among the values of parameters and options, or None."""
    folders = [(name, str(values[name])) for name in FOLDERS if values.get(name)]
    conflicts = (
        folder_conflict(one, other, names=(name, other_name))
        for (name, one), (other_name, other) in combinations(folders, 2)
    )
    return next(filter(None, conflicts), None)


def is_a_file(location: str) -> bool:
    """Return whether a path names something that is no folder. Nothing is asked of an object store."""
    return "://" not in location and os.path.lexists(location) and not os.path.isdir(location)


def folder_conflict(
    output: str, checkpoint_dir: str, *, names: tuple[str, str] = ("output", "checkpoint_dir")
) -> str | None:
    """Return what is wrong with the two locations, or None if both are valid and neither is inside the other.

    Each is a path or a URL; `names` are for the message. Links in the existing part of a path are resolved. The runner
    refuses a checkpoint folder with foreign files in it, and readers of the output would take checkpoint files for
    published ones.
    """
    try:
        inner, outer = _resolved(locate(output)), _resolved(locate(checkpoint_dir))
    except UsageError as error:
        return str(error).removesuffix(".")
    one, other = names
    if inner == outer:
        return f"{one} and {other} are the same folder, {inner}; choose two separate folders"
    if _contains(outer, inner):
        return f"{one} {inner} is inside {other} {outer}; choose two separate folders"
    if _contains(inner, outer):
        return f"{other} {outer} is inside {one} {inner}; choose two separate folders"
    return None


def _contains(outer: str, inner: str) -> bool:
    return inner.startswith(outer.rstrip("/") + "/")


def _resolved(location: Location | str) -> str:
    return os.path.realpath(location) if isinstance(location, str) else location.url
