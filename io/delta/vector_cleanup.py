"""Deletes deletion vectors of the sink that no version of the table needs any more. Needs pyarrow.

Each commit replaces the vectors of the files that it changes. `VACUUM` of delta-rs 1.6 and of Spark leave those in
folders whose names begin with "_", as the sink's folder does, so the sink deletes them itself, by VACUUM's own rule.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow.parquet

from penstock.io.delta.deletion_vectors import FOLDER, Vector, created_ms
from penstock.io.delta.folder import DeltaFolder
from penstock.io.delta.table_log import checkpoint_contents

_RETENTION, _DEFAULT_RETENTION = "delta.deletedFileRetentionDuration", "interval 7 days"
_HOUR_MS = 3_600_000
_UNITS_MS = {
    "second": 1_000,
    "minute": 60_000,
    "hour": _HOUR_MS,
    "day": 24 * _HOUR_MS,
    "week": 7 * 24 * _HOUR_MS,
}
_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)


def delete_dead_vectors(
    folder: DeltaFolder, vectors: Iterable[Vector], configuration: Mapping[str, str], now_ms: int
) -> None:
    """Delete vectors whose files have been removed for longer than `delta.deletedFileRetentionDuration`.

    `vectors`: of the newest version, which has just got a checkpoint. A checkpoint has the entries of removed
    files for this time.
    """
    retention_ms = retention_ms_of(configuration)
    # A person who has written an interval of another form gets no file deleted.
    if retention_ms is None:
        return
    # A file that the sink has not created counts as new, and stays.
    old = [name for name in folder.vector_names() if (created_ms(name) or now_ms) < now_ms - retention_ms]
    if old:
        needed = {*_paths(vectors), *_paths(_removed_in(folder))}
        folder.delete(dead_vectors(old, needed))


def retention_ms_of(configuration: Mapping[str, str]) -> int | None:
    """Return for how many milliseconds checkpoints have the files that were removed; None: it cannot be read."""
    return milliseconds(configuration.get(_RETENTION, _DEFAULT_RETENTION))


def dead_vectors(old: Iterable[str], needed: Collection[str]) -> list[str]:
    """Return the paths of the vectors with names `old` that are not among the `needed` paths."""
    return [path for name in old if (path := f"{FOLDER}/{name}") not in needed]


def milliseconds(interval: str) -> int | None:
    """Return the length of an interval such as "interval 7 days"; None: it has another form."""
    found = _INTERVAL.fullmatch(interval.strip())
    return None if found is None else int(found[1]) * _UNITS_MS[found[2].lower()]


def _paths(vectors: Iterable[Vector]) -> Iterator[str]:
    return (path for each in vectors if each.storage_type == "u" and (path := each.path) is not None)


def _removed_in(folder: DeltaFolder) -> Iterator[Vector]:
    """Yield the vectors of the files that the last checkpoint has as removed."""
    _, contents = checkpoint_contents(folder)
    for content in contents:
        rows = pyarrow.parquet.ParquetFile(io.BytesIO(content)).read(columns=["remove.deletionVector"])
        for row in rows.column("remove").drop_null().to_pylist():
            vector: Any = row["deletionVector"]
            if vector is not None:
                yield msgspec.convert(vector, Vector)
