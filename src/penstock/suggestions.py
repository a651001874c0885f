"""Suggests the known name that is most similar to a wrong one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches


def did_you_mean(given: str, known: Iterable[str], *, shown: Mapping[str, str] | None = None) -> str:
    """Return `; did you mean '…'?` with the most similar known name, or an empty text if none is similar.

    Case is ignored, and `-` is equal to `_`. `shown` maps a known name to the form that the text shows.
    """
    names = {_plain(name): (shown or {}).get(name, name) for name in known}
    near = get_close_matches(_plain(given), names, n=1, cutoff=0.6)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
