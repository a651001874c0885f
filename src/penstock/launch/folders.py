"""Checks that the output folder and the checkpoint folder are separate."""

from __future__ import annotations

import os


def folder_conflict(output: str, checkpoint_dir: str) -> str | None:
    """Return what is wrong with the two folders, or None if neither is inside the other.

    Links in the existing part of each path are resolved. The runner refuses a checkpoint folder with foreign files in
    it, and readers of the output would take checkpoint files for published ones.
    """
    inner, outer = os.path.realpath(output), os.path.realpath(checkpoint_dir)
    if inner == outer:
        return f"output and checkpoint_dir are the same folder, {inner}; choose two separate folders"
    if _contains(outer, inner):
        return f"output {inner} is inside checkpoint_dir {outer}; choose two separate folders"
    if _contains(inner, outer):
        return f"checkpoint_dir {outer} is inside output {inner}; choose two separate folders"
    return None


def _contains(outer: str, inner: str) -> bool:
    return os.path.commonpath([outer, inner]) == outer
