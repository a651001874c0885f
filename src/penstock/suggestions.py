"""The name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return `; did you mean '…'?` for the known name nearest to `given`, or nothing if none is near.

    Case, and `-` for `_`, do not count as a difference.
    """
    names = {_plain(name): name for name in known}
    near = get_close_matches(_plain(given), names, n=1, cutoff=0.6)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
