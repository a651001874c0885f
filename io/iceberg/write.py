"""`WriteToIceberg`: change events into Iceberg tables, through pyiceberg."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from penstock.errors import UsageError
from penstock.event.schema_changes import Policy
from penstock.extras import require_extra
from penstock.io.columnar.publish_tables import publish_tables
from penstock.io.columnar.replica import check_arguments
from penstock.io.columnar.table_rows import Mode
from penstock.io.columnar.write_checked import WriteCheckedRows


class WriteToIceberg(WriteCheckedRows):
    """Write change events into Iceberg tables: exactly once, one commit for each epoch and table.

        events | WriteToIceberg("shop.{table}", catalog="prod", mode="current")

    Modes, their columns and the rules for versions, deletes and keys: see `WriteToDelta`. Rows are
    replaced by copy-on-write. The table and its namespace are created when the first event comes.

    Order: epochs are committed in their order. The events of a table have one order in an epoch, by version, and the
    last version of a row counts.
    What repeats: nothing. The commit of an epoch sets its number as a table property, which is compared before the
    commit. Two drivers, or other writers of the table, change nothing about that.
    Watermark: each event holds it until its commit.
    State: the events of the last `roll_seconds`; in the driver eight bytes for each key of a table, while rows of a
    snapshot are written to it. Except in the mode ``log``, a commit reads the table in the driver.

    Args:
        table: the table with its namespace, such as ``shop.orders``. ``{table}``, ``{schema}`` and ``{database}`` are
            filled in; without them all events must be of one table.
        catalog: the name of the catalogue, as in pyiceberg's configuration.
        mode: ``log``, ``current`` or ``history``.
        schema_changes: what happens if columns are added or become wider: ``evolve`` changes the table, ``ignore`` does
            not write them, ``stop`` fails the pipeline.
        roll_seconds: how long events are collected before a commit, in seconds of processing time; 0: one commit for
            each epoch.
        catalog_properties: properties of the catalogue, in addition to pyiceberg's configuration file and environment,
            which are the better place for credentials.
        staging: a folder or URL for the events of an epoch; None: in the checkpoint.
        tombstone_seconds: how long, in seconds of commit time, the tombstones of the mode ``current`` stay. At least
            the retention of the change stream and the age at which dead letters are replayed.

    Raises:
        UsageError: an argument is wrong, or pyiceberg is missing (at construction).
        SchemaChangedError: `schema_changes` forbids what must change (at run time; other tables are written).
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        mode: Mode = "current",
        schema_changes: Policy = "evolve",
        roll_seconds: float = 10,
        catalog_properties: Mapping[str, str] | None = None,
        staging: str | os.PathLike[str] | None = None,
        tombstone_seconds: float = 7 * 86_400,
    ) -> None:
        require_extra("iceberg", "pyiceberg")
        require_extra("iceberg", "pyarrow")
        # Imported here, because the module needs pyarrow.
        from penstock.io.iceberg.target import IcebergTarget

        check_arguments("table", table, mode, schema_changes)
        if "." not in table:
            raise UsageError(f"table needs a namespace, such as shop.{table}, got {table!r}.")
        target = IcebergTarget(
            table, catalog, mode, schema_changes, dict(catalog_properties or {}), tombstone_seconds
        )
        publish = publish_tables(target, roll_seconds, staging)
        super().__init__(target.name, "Publish", publish, mode)
        self._mode = mode

    def display_data(self) -> dict[str, Any]:
        return {"mode": self._mode, **super().display_data()}
