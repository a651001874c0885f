"""Finds the keys of two tables that may not be equal, in little memory: a digest for each row, in a file.

A sorted merge of two streams would need one order of keys in PostgreSQL, Spanner, Delta and Iceberg. There is none:
collations differ, and the rows of a data lake are in no order. SQLite sorts the digests on disk and joins them.

A file that is kept has the progress too, committed with the rows of each chunk. So a comparison that was killed
continues after the last chunk. Rows of the target are read as a whole: they cost the source nothing.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Self

from penstock.compat import StrEnum

_TABLES = """
create table if not exists source (key text, digest blob);
create table if not exists target (key text, digest blob);
create table if not exists suspects (key text);
create table if not exists progress
    (identity text, stage text, cursor text, rows integer, until_ns integer, began_ns integer, shape text);
"""
_SUSPECTS = """
insert into suspects
select source.key from source left join target on target.key = source.key where target.digest is not source.digest
union select target.key from target left join source on source.key = target.key where source.key is null
union select key from target group by key having count(*) > 1
"""


class Stage(StrEnum):
    """The next step of the comparison of a table."""

    SOURCE = "source"
    TARGET = "target"
    SUSPECTS = "suspects"


class Progress(NamedTuple):
    """How far the comparison of a table is.

    - `cursor`: of the last row of the source that was read. `rows`: how many were.
    - `until_ns`: the target must be complete until then before it is read.
    - `began_ns`: when the first row was read, in nanoseconds of the wall clock.
    - `shape`: the columns of the target whose values are in the digests; empty before its table is known.
    """

    stage: Stage = Stage.SOURCE
    cursor: str = ""
    rows: int = 0
    until_ns: int = 0
    began_ns: int = 0
    shape: str = ""


class Fingerprints:
    """The digests of one table of the source and of one table of the target."""

    def __init__(self, session: sqlite3.Connection, identity: str = "") -> None:
        """`identity`: of the comparison. Digests of another one are deleted."""
        self._session, self._identity = session, identity
        session.executescript(_TABLES)
        self.progress = Progress()
        found = session.execute(
            "select stage, cursor, rows, until_ns, began_ns, shape from progress where identity = ?",
            (identity,),
        ).fetchone()
        if found is None:
            self.clear()
        else:
            self.progress = Progress(Stage(found[0]), *found[1:])

    @classmethod
    @contextmanager
    def in_temporary_file(cls) -> Iterator[Self]:
        """Yield an empty one, in a file that only this user can read, and delete the file at the end."""
        with tempfile.TemporaryDirectory(prefix="penstock-verify-") as folder:
            session = _open(Path(folder, "digests"))
            with closing(session):
                # Nothing is to survive a crash.
                session.execute("pragma journal_mode = off")
                session.execute("pragma synchronous = off")
                yield cls(session)

    @classmethod
    def in_file(cls, file: Path, identity: str) -> Self:
        """Open a file that keeps the digests of the comparison `identity`. Saved rows survive a crash.

        Raises:
            sqlite3.DatabaseError: the file is damaged.
        """
        session = _open(file)
        try:
            session.execute("pragma journal_mode = wal")
            session.execute("pragma synchronous = normal")
            return cls(session, identity)
        except BaseException:
            session.close()
            raise

    def close(self) -> None:
        """Close the file. Rows that were not saved are not in it."""
        self._session.close()

    def clear(self) -> None:
        """Begin with nothing."""
        for name in ("source", "target", "suspects", "progress"):
            self._session.execute(f"delete from {name}")
        self.progress = Progress()

    def save(self, progress: Progress) -> None:
        """Commit the rows that were added, and how far the comparison is with them."""
        self._session.execute("delete from progress")
        values = (self._identity, progress.stage.value, *progress[1:])
        self._session.execute("insert into progress values (?, ?, ?, ?, ?, ?, ?)", values)
        if self._session.in_transaction:
            self._session.execute("commit")
        self.progress = progress

    def add_source(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Add rows of the source: pairs of a key and a digest. `save` commits them."""
        self._add("source", rows)

    def add_target(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Add rows of the target. `suspects` commits them."""
        self._add("target", rows)

    def _add(self, side: str, rows: Iterable[tuple[str, bytes]]) -> None:
        if not self._session.in_transaction:
            self._session.execute("begin")
        self._session.executemany(f"insert into {side} values (?, ?)", rows)

    def suspects(self) -> Iterator[str]:
        """Yield the keys that one side lacks, or that have two digests, or that the target has twice.

        Only they are kept from then on.
        """
        if self.progress.stage is not Stage.SUSPECTS:
            for side in ("source", "target"):
                self._session.execute(f"create index if not exists of_{side} on {side} (key, digest)")
            self._session.execute(_SUSPECTS)
            for side in ("source", "target"):
                self._session.execute(f"delete from {side}")
            self.save(self.progress._replace(stage=Stage.SUSPECTS))
            self._session.execute("vacuum")
        for (key,) in self._session.execute("select key from suspects"):
            yield key


def _open(file: Path) -> sqlite3.Connection:
    # Autocommit, so that no transaction begins but those of this module.
    return sqlite3.connect(file, isolation_level=None)
