"""Where the reader of a slot continues. Pure."""

from __future__ import annotations

from typing import NamedTuple

from penstock.io.change_streams.incremental.progress import SnapshotProgress

NO_SNAPSHOTS = SnapshotProgress()


class ReadView(NamedTuple):
    """The snapshot of the database that an initial snapshot reads. Changes that it contains are not emitted.

    `visible`: the transactions that it contains, as `pg_current_snapshot` says it. They were committed before `lsn`,
    and up to `timestamp`, nanoseconds of the server's clock. `name`, `lock`: under which the server holds it; `name` is
    empty when no more rows are read at it.
    """

    visible: str
    lsn: int
    timestamp: int
    name: str
    lock: int


class Position(NamedTuple):
    """Where the reader of a slot continues.

    `lsn`: transactions that end at or before it were read. `claimed`: how many records of the next transaction were
    claimed. `system`: the identifier of the server's cluster, so that the log of another cluster is not taken for it.
    `previous_end`: where the last transaction ended that was read; `lsn` may be later, because the log between two
    transactions is passed too. It is a part of the records, so a repeated read must find it. `snapshots`: what
    remains to be read of tables. `recent`: transactions that were read and that other sessions may not see yet; empty
    if no snapshot can begin. `prepared`: where the oldest transaction was prepared that is neither committed nor rolled
    back, 0 if there is none. The server does not repeat a prepared transaction that was acknowledged. `initial`: while
    an initial snapshot is read, and until the log was read to its end and the server has released it. `published`: the
    published tables when they were last looked at, packed; see `schema_watch`. `blocks`: the tables that an initial
    snapshot reads before the log, as (table, number of blocks, whether it has a key); see `initial_scan.frontier`.
    """

    lsn: int
    claimed: int
    system: str
    previous_end: int = 0
    snapshots: SnapshotProgress = NO_SNAPSHOTS
    recent: tuple[int, ...] = ()
    prepared: int = 0
    initial: ReadView | None = None
    published: str = ""
    blocks: tuple[tuple[str, int, bool], ...] = ()

    @property
    def safe_lsn(self) -> int:
        """The position at which a restart begins to read. The log before it is not needed any more."""
        return min(self.lsn, self.prepared or self.lsn)
