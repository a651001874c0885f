"""Which files of dead letters wait for a replay. No Beam, because the command line imports it too."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import datetime

from penstock.compat import UTC
from penstock.measurement import Measurement

_HOUR = re.compile(r"/(\d{4}-\d\d-\d\dT\d\d)/")


def waiting_letters(files: Iterable[str], replayed: Collection[str]) -> list[Measurement]:
    """Return the number of files that no replay has taken, and the time of the oldest letter in them, if any."""
    waiting = not_replayed(files, replayed)
    found = [
        Measurement(
            "penstock_dead_letter_files", len(waiting), "Files of dead letters that were not replayed."
        )
    ]
    if (oldest := oldest_letter(waiting)) is not None:
        text = "Event time of the oldest dead letter that was not replayed, rounded down to the hour."
        found.append(Measurement("penstock_oldest_dead_letter_timestamp_seconds", oldest, text, "s"))
    return found


def not_replayed(files: Iterable[str], replayed: Collection[str]) -> list[str]:
    """Return the files of dead letters that no replay has taken."""
    return [file for file in files if file not in replayed]


def oldest_letter(files: Iterable[str]) -> float | None:
    """Return the event time of the oldest letter in files, in seconds and rounded down to the hour; None without one.

    The hour is part of a file's name.
    """
    hours = [match[1] for match in map(_HOUR.search, files) if match]
    return datetime.fromisoformat(f"{min(hours)}:00").replace(tzinfo=UTC).timestamp() if hours else None
