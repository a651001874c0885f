"""Places of rows in data files, as sorted arrays. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
"""Places of rows in a data file, from 0, in ascending order, each once."""

NO_ROWS: Positions = np.empty(0, np.int64)
NO_POSITIONS: Mapping[str, Positions] = {}


def joined(parts: Iterable[Mapping[str, Positions]]) -> dict[str, Positions]:
    """Return the rows that are in one of several sets. A file without such rows is left out."""
    found: dict[str, list[Positions]] = {}
    for part in parts:
        for path, positions in part.items():
            if len(positions):
                found.setdefault(path, []).append(positions)
    return {path: in_order(each) for path, each in found.items()}


def in_order(parts: Sequence[Positions]) -> Positions:
    """Return the rows of one file that are in one of several sets."""
    # The parts are in order nearly always. A stable sort takes them as runs, which is many times faster.
    found = np.sort(np.concatenate(parts), kind="stable")
    return found[np.diff(found, prepend=-1) > 0]


def are_in(positions: Positions, known: Positions) -> npt.NDArray[np.bool_]:
    """Return for each position whether it is one of the `known` ones."""
    if not len(known):
        return np.zeros(len(positions), np.bool_)
    # `np.isin` would sort all known ones again.
    places = np.minimum(np.searchsorted(known, positions), len(known) - 1)
    return known[places] == positions
