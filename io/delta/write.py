"""`WriteToDelta`: change events into Delta tables, through delta-rs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from penstock.event.schema_changes import Policy
from penstock.extras import require_extra
from penstock.io.columnar.publish_tables import publish_tables
from penstock.io.columnar.replica import check_arguments
from penstock.io.columnar.table_rows import Mode
from penstock.io.columnar.write_checked import WriteCheckedRows


class WriteToDelta(WriteCheckedRows):
    """Write change events into Delta tables: exactly once, one commit for each epoch and table.

        events | WriteToDelta("s3://lake/{table}", mode="current")

    Modes:

    - ``log``: every change is a row (`penstock.event.change_rows`).
    - ``current``: one row per primary key. A deleted row stays as a tombstone: ``_penstock_deleted`` is true and its
      other columns are null. So the rows of the source are those ``where not _penstock_deleted``.
    - ``history``: one row for each version of a row, valid from ``_penstock_timestamp`` until ``_penstock_valid_to``
      (null: still valid).

    A newer version of a row wins (``_penstock_version``, a text that sorts as versions do). A column that the source
    did not send keeps its value. A change of the key ends the row of the old key. TRUNCATE removes the rows that are
    older. Column types are the plain ones (`penstock.event.plain_types`). The table is created when the first event
    comes.

    Order: epochs are committed in their order. The events of a table have one order in an epoch, by version, and the
    last version of a row counts.
    What repeats: nothing. The commit of an epoch has its number as an application transaction, which is compared
    before the commit. Two drivers, or other writers of the table, change nothing about that.
    Watermark: each event holds it until its commit.
    State: the events of the last `roll_seconds`; in the driver eight bytes for each key of a table, while rows of a
    snapshot are written to it. Except in the mode ``log``, a commit reads the table in the driver.

    Args:
        uri: the table: a local folder or the URL of an object store. ``{table}``, ``{schema}`` and ``{database}`` are
            filled in; without them all events must be of one table.
        mode: ``log``, ``current`` or ``history``.
        schema_changes: what happens if columns are added or become wider: ``evolve`` changes the table, ``ignore`` does
            not write them, ``stop`` fails the pipeline.
        roll_seconds: how long events are collected before a commit, in seconds of processing time; 0: one commit for
            each epoch.
        storage_options: options of delta-rs for the object store. Credentials are better in the environment.
        staging: a folder or URL for the events of an epoch; None: in the checkpoint.
        tombstone_seconds: how long, in seconds of commit time, the tombstones of the mode ``current`` stay. At least
            the retention of the change stream and the age at which dead letters are replayed.

    Raises:
        UsageError: an argument is wrong, or delta-rs is missing (at construction).
        SchemaChangedError: `schema_changes` forbids what must change (at run time; other tables are written).
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        mode: Mode = "current",
        schema_changes: Policy = "evolve",
        roll_seconds: float = 10,
        storage_options: Mapping[str, str] | None = None,
        staging: str | os.PathLike[str] | None = None,
        tombstone_seconds: float = 7 * 86_400,
    ) -> None:
        # Imported here, because the module needs pyarrow.
        require_extra("delta", "deltalake")
        require_extra("delta", "pyarrow")
        from penstock.io.delta.target import DeltaTarget

        check_arguments("uri", os.fspath(uri), mode, schema_changes)
        target = DeltaTarget(
            os.fspath(uri), mode, schema_changes, dict(storage_options or {}), tombstone_seconds
        )
        publish = publish_tables(target, roll_seconds, staging)
        super().__init__(target.name, "Publish", publish, mode)
        self._mode = mode

    def display_data(self) -> dict[str, Any]:
        return {"mode": self._mode, **super().display_data()}
