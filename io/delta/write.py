"""`WriteToDelta`: change events into Delta tables, through delta-rs."""

from __future__ import annotations

import os
from typing import Any

from penstock.extras import require_extra
from penstock.io.columnar.options import ABILITIES
from penstock.io.columnar.partitions import partition_entries
from penstock.io.columnar.publish_tables import publish_tables, rows_of
from penstock.io.columnar.replica import check_arguments
from penstock.io.columnar.write_checked import WriteCheckedRows
from penstock.io.delta.options import DELTA_CANNOT_MOVE, DeltaSinkOptions


class WriteToDelta(DeltaSinkOptions, WriteCheckedRows):
    """Write change events into Delta tables: exactly once, one commit for each epoch and table.

        events | WriteToDelta("s3://lake/{table}", mode="current")

    Modes:

    - ``log``: every change is a row (`penstock.event.change_rows`), or with ``layout="table"`` the rows are the change
      feed of the table (`penstock.event.change_feed`).
    - ``current``: one row per primary key. A deleted row stays as a tombstone: ``_penstock_deleted`` is true and its
      other columns are null. So the rows of the source are those ``where not _penstock_deleted``.
    - ``history``: one row for each version of a row, valid from ``_penstock_timestamp`` until ``_penstock_valid_to``
      (null: still valid).

    A newer version of a row wins (``_penstock_version``, a text that sorts as versions do). A column that the source
    did not send keeps its value. A change of the key ends the row of the old key. TRUNCATE removes the rows that are
    older. Column types are the plain ones (`penstock.event.plain_types`). The table is created when the first event
    comes.

    With `deletion_vectors` a commit in the modes ``current`` and ``history`` marks the rows that it replaces, and its
    cost does not grow with the table. Otherwise it is a MERGE, which writes each file again that has such a row.

    Order: epochs are committed in their order. The events of a table have one order in an epoch, by version, and the
    last version of a row counts.
    What repeats: nothing. The commit of an epoch has its number as an application transaction, which is compared
    before the commit. Two drivers, or other writers of the table, change nothing about that.
    Watermark: each event holds it until its commit.
    State: the events of the last `roll_seconds`. In the mode ``log`` the tasks write files, and the driver commits
    their names. In the others it keeps eight bytes for each key of a table, while rows of a snapshot are written to it,
    and a commit reads the table there. With `deletion_vectors` it has an index of the keys of the files instead, of
    `max_index_bytes` on its disk at most, and reads the keys of other files.

    Raises:
        UsageError: an argument is wrong, or delta-rs is missing (at construction).
        SchemaChangedError: `schema_changes` forbids what must change (at run time; other tables are written).
    """

    def __post_init__(self) -> None:
        # Imported here, because the module needs pyarrow.
        require_extra("delta", "deltalake")
        require_extra("delta", "pyarrow")
        if self.deletion_vectors:
            require_extra("delta", "pyroaring")
        from penstock.io.delta.folder import is_local
        from penstock.io.delta.target import DeltaTarget

        uri = os.fspath(self.uri)
        # The tasks of a log write files, and may have another working directory.
        if self.mode == "log" and is_local(uri) and not uri.startswith("file://"):
            uri = os.path.abspath(uri)
        self.check_vectors()
        self.check_layout()
        partition_entries(self.partition_by, self.mode, self.layout)
        self.check_upkeep()
        check_arguments(
            "uri", uri, self.mode, self.schema_changes, ABILITIES, "a Delta table", DELTA_CANNOT_MOVE
        )
        target = DeltaTarget(
            uri,
            self.mode,
            self.schema_changes,
            dict(self.storage_options or {}),
            self.tombstone_seconds,
            self.mark_seconds,
            deletion_vectors=self.deletion_vectors,
            partition_by=self.partition_by,
            version_seconds=self.version_seconds,
            max_index_bytes=self.max_index_bytes,
            layout=self.layout,
        )
        publish = publish_tables(target, options=self, max_parked_bytes=self.parked_bytes)
        WriteCheckedRows.__init__(
            self, target.name, "Publish", publish, self.mode, rows=rows_of(publish), layout=self.layout
        )

    def display_data(self) -> dict[str, Any]:
        return {"mode": self.mode, **super().display_data()}
