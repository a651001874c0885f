"""Finds the keys of two tables that may not be equal, in little memory: a digest for each row, in a temporary file.

A sorted merge of two streams would need one order of keys in PostgreSQL, Spanner, Delta and Iceberg. There is none:
collations differ, and the rows of a data lake are in no order. SQLite sorts the digests on disk and joins them.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from typing_extensions import Self

_SUSPECTS = """
select source.key from source left join target on target.key = source.key where target.digest is not source.digest
union select target.key from target left join source on source.key = target.key where source.key is null
union select key from target group by key having count(*) > 1
"""


class Fingerprints:
    """The digests of one table of the source and of one table of the target."""

    def __init__(self, session: sqlite3.Connection) -> None:
        self._session = session
        for side in ("source", "target"):
            session.execute(f"create table {side} (key text, digest blob)")

    @classmethod
    @contextmanager
    def in_temporary_file(cls) -> Iterator[Self]:
        """Yield an empty one, in a file that only this user can read, and delete the file at the end."""
        with tempfile.TemporaryDirectory(prefix="penstock-verify-") as folder:
            # Autocommit, so that the transaction below is the only one. Nothing is to survive a crash.
            session = sqlite3.connect(Path(folder, "digests"), isolation_level=None)
            with closing(session):
                session.execute("pragma journal_mode = off")
                session.execute("pragma synchronous = off")
                session.execute("begin")
                yield cls(session)

    def add_source(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Add rows of the source: pairs of a key and a digest."""
        self._session.executemany("insert into source values (?, ?)", rows)

    def add_target(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Add rows of the target."""
        self._session.executemany("insert into target values (?, ?)", rows)

    def suspects(self) -> Iterator[str]:
        """Yield the keys that one side lacks, or that have two digests, or that the target has twice."""
        for side in ("source", "target"):
            self._session.execute(f"create index of_{side} on {side} (key, digest)")
        for (key,) in self._session.execute(_SUSPECTS):
            yield key
