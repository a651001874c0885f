"""Which old versions of a table are forgotten, and when. Pure."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

logger = logging.getLogger(__name__)

_PARTS = 24
"""Old versions are forgotten in each of so many parts of their time, because that reads metadata of the table."""


class OldVersion(NamedTuple):
    """A version of a table: its number, and the time of its commit in milliseconds since the epoch."""

    number: int
    committed_ms: int


def forgotten_versions(versions: Sequence[OldVersion], before_ms: int) -> list[OldVersion]:
    """Return the versions that newer ones had replaced before (not at) a time; `versions` are all, oldest first.

    The newest version stays, and the one that was the newest at this time.
    """
    return [version for version, newer in pairwise(versions) if newer.committed_ms < before_ms]


def is_due(last: float | None, now: float, version_seconds: float) -> bool:
    """Return whether old versions are to be forgotten now; `last` is when this was done, None: not yet."""
    return version_seconds > 0 and (last is None or now - last >= version_seconds / _PARTS)


@lru_cache(maxsize=1000)
def warn_of_kept_versions(name: str, reason: str) -> None:
    """Warn, once for each table, that its old versions stay."""
    logger.warning("old versions of the table %s stay, although version_seconds is set: %s", name, reason)
