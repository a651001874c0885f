"""`WriteToIceberg`: change events into Iceberg tables, through pyiceberg."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from penstock.errors import UsageError
from penstock.extras import require_extra
from penstock.io.columnar.partitions import partition_entries
from penstock.io.columnar.publish_tables import publish_tables, rows_of
from penstock.io.columnar.replica import check_arguments
from penstock.io.columnar.write_checked import WriteCheckedRows
from penstock.io.iceberg.options import ICEBERG_ABILITIES, IcebergSinkOptions

_SQLITE = "sqlite:///"


class WriteToIceberg(IcebergSinkOptions, WriteCheckedRows):
    """Write change events into Iceberg tables: exactly once, one commit for each epoch and table.

        events | WriteToIceberg("shop.{table}", catalog="prod", mode="current")

    Modes, their columns and the rules for versions, deletes and keys: see `WriteToDelta`. Rows are
    replaced by position deletes, and the sink merges small files. The table and its namespace are created when the
    first event comes.

    In the mode ``log`` the workers need the catalogue too: its configuration, its credentials and pyiceberg.

    Order: epochs are committed in their order. The events of a table have one order in an epoch, by version, and the
    last version of a row counts.
    What repeats: nothing. The commit of an epoch sets its number as a table property, which is compared before the
    commit. Two drivers, or other writers of the table, change nothing about that.
    Watermark: each event holds it until its commit.
    State: the events of the last `roll_seconds`. In the mode ``log`` the tasks create the tables and write files, and
    the driver commits their names. In the others the driver has an index of the keys of the files, of
    `max_index_bytes` on its disk at most. It reads the keys of other files, one row group at a time, and keeps eight
    bytes for each key of a table, while rows of a snapshot are written to it.

    Raises:
        UsageError: an argument is wrong, or pyiceberg is missing (at construction).
        SchemaChangedError: `schema_changes` forbids what must change (at run time; other tables are written).
    """

    def __post_init__(self) -> None:
        require_extra("iceberg", "pyiceberg")
        require_extra("iceberg", "pyarrow")
        # Imported here, because the module needs pyarrow.
        from penstock.io.iceberg.target import IcebergTarget

        check_arguments(
            "table", self.table, self.mode, self.schema_changes, ICEBERG_ABILITIES, "an Iceberg table"
        )
        if "." not in self.table:
            raise UsageError(f"table needs a namespace, such as shop.{self.table}, got {self.table!r}.")
        self.check_layout()
        partition_entries(self.partition_by, self.mode, self.layout)
        self.check_upkeep()
        properties = dict(self.catalog_properties or {})
        target = IcebergTarget(
            self.table,
            self.catalog,
            self.mode,
            self.schema_changes,
            # The tasks of a log write files, and may have another working directory.
            _with_whole_paths(properties) if self.mode == "log" else properties,
            self.tombstone_seconds,
            self.mark_seconds,
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


def _with_whole_paths(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a catalogue with the whole paths of a warehouse and a SQLite file on this machine."""
    found = dict(properties)
    warehouse, uri = found.get("warehouse", ""), found.get("uri", "")
    if warehouse and ":" not in warehouse:
        found["warehouse"] = os.path.abspath(warehouse)
    file = uri.removeprefix(_SQLITE)
    if uri.startswith(_SQLITE) and file and not file.startswith((":memory:", "file:")):
        found["uri"] = _SQLITE + os.path.abspath(file)
    return found
