"""One record of a YDB changefeed, as the topic has it. Pure: imports neither Beam nor a client."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from penstock.timestamps import format_timestamp


class TableColumn(NamedTuple):
    """`type`: YDB's name, such as ``Uint64`` or ``Decimal(22,9)``. `nullable` None: YDB did not say."""

    name: str
    type: str
    nullable: bool | None = None


class Table(msgspec.Struct, frozen=True, array_like=True):
    """The facts about a table and its changefeed that records do not contain.

    - `name`: path of the table below the database.
    - `mode`, `format` of the changefeed, such as NEW_IMAGE and JSON.
    - `columns`, `key`: the columns, and the names of the columns of the primary key, in its order.
    """

    name: str
    changefeed: str
    mode: str
    format: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]


class ChangefeedRecord(msgspec.Struct, frozen=True, gc=False):
    """One change of a row, or a change of the schema.

    - `event_timestamp`: nanoseconds. The commit time, or the partition's watermark if that is later; see `read`.
    - `partition`, `offset`: its place in the topic.
    - `table`: the table as it is described where the record was read.
    - `data`: the value as YDB wrote it: a JSON object, which contains values of the row.
    - `key`: the message key of the Debezium format; empty in other formats.
    - `step`, `tx_id`: the virtual timestamp; both 0 if the changefeed has none.
    - `is_initial_scan`: the row was there before the changefeed.
    - `created_at`, `written_at`: nanoseconds. When the shard of the table made the record, and when YDB wrote it.
    """

    event_timestamp: int
    partition: int
    offset: int
    table: Table
    data: bytes
    key: bytes = b""
    step: int = 0
    tx_id: int = 0
    is_initial_scan: bool = False
    created_at: int = 0
    written_at: int = 0

    @property
    def commit_timestamp(self) -> int:
        """The time of the record in a pipeline, in nanoseconds: `event_timestamp`, which no watermark has passed."""
        return self.event_timestamp

    def __repr__(self) -> str:  # no values: they are someone's data
        at = format_timestamp(self.event_timestamp)
        return f"<record {self.offset} of partition {self.partition} of {self.table.name} at {at}>"
