"""Check that the output folder and the checkpoint folder are separate."""

from __future__ import annotations

import os

from penstock.errors import UsageError
from penstock.object_stores.location import Location, locate


def folder_conflict(output: str, checkpoint_dir: str) -> str | None:
    """Return what is wrong with the two locations, or None if both are valid and neither is inside the other.

    Each is a path or a URL. Links in the existing part of a path are resolved. The runner refuses a checkpoint folder
    with foreign files in it, and readers of the output would take checkpoint files for published ones.
    """
    try:
        inner, outer = _place(locate(output)), _place(locate(checkpoint_dir))
    except UsageError as error:
        return str(error).removesuffix(".")
    if inner == outer:
        return f"output and checkpoint_dir are the same folder, {inner}; choose two separate folders"
    if _contains(outer, inner):
        return f"output {inner} is inside checkpoint_dir {outer}; choose two separate folders"
    if _contains(inner, outer):
        return f"checkpoint_dir {outer} is inside output {inner}; choose two separate folders"
    return None


def _contains(outer: str, inner: str) -> bool:
    return inner.startswith(outer.rstrip("/") + "/")


def _place(location: Location | str) -> str:
    return os.path.realpath(location) if isinstance(location, str) else location.url
