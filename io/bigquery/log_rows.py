"""Tables of the mode *log*: their columns, and the row of an event. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.event.model import ChangeEvent
from penstock.event.plain_json import image_json
from penstock.event.replica import encode_version
from penstock.io.bigquery.columns import Field

LOG_FIELDS = (
    Field("event_id", "STRING", "REQUIRED"),
    Field("version", "STRING", "REQUIRED"),
    Field("op", "STRING", "REQUIRED"),
    Field("committed_at", "TIMESTAMP"),
    Field("transaction_id", "STRING"),
    Field("source", "JSON"),
    Field("key", "JSON"),
    Field("before", "JSON"),
    Field("after", "JSON"),
    Field("not_sent", "STRING", "REPEATED"),
    # The batch of each row. A sender that must find out how much of a batch is in the table queries these columns.
    Field("batch_writer", "STRING", "REQUIRED"),
    Field("batch_epoch", "INT64", "REQUIRED"),
    Field("batch_index", "INT64", "REQUIRED"),
)
"""Columns of a change log."""

LEDGER, STREAMS, COMPLETE = "penstock_ledger", "penstock_streams", "penstock_complete"
COMPLETE_CURRENT = "penstock_complete_current"

LEDGER_FIELDS = (
    Field("writer", "STRING", "REQUIRED"),
    Field("table_name", "STRING", "REQUIRED"),
    Field("generation", "INT64", "REQUIRED"),
    Field("epoch", "INT64", "REQUIRED"),
    Field("driver", "STRING", "REQUIRED"),
    Field("stream", "STRING", "REQUIRED"),
    Field("next_offset", "INT64", "REQUIRED"),
    Field("refused", "STRING", "REQUIRED"),
    Field("written_at", "TIMESTAMP", "REQUIRED"),
)
STREAMS_FIELDS = (
    Field("writer", "STRING", "REQUIRED"),
    Field("table_name", "STRING", "REQUIRED"),
    Field("previous", "STRING", "REQUIRED"),
    Field("stream", "STRING", "REQUIRED"),
    Field("epoch", "INT64", "REQUIRED"),
    Field("rows_before", "INT64", "REQUIRED"),
    Field("chosen", "BOOL", "REQUIRED"),
)
COMPLETE_FIELDS = (
    Field("job", "STRING", "REQUIRED"),
    Field("sink", "STRING", "REQUIRED"),
    Field("record", "INT64", "REQUIRED"),
    Field("complete_until", "TIMESTAMP", "REQUIRED"),
)
COMPLETE_CURRENT_FIELDS = (*COMPLETE_FIELDS, Field("counts_from", "TIMESTAMP", "REQUIRED"))
"""Several rows for each sink. A row counts for queries that begin at `counts_from` or later."""

_encode = msgspec.json.Encoder().encode


def log_row(event: ChangeEvent, writer: str, epoch: int, index: int) -> dict[str, Any]:
    """Return the row of an event, the `index`-th of its batch.

    Raises:
        ValueError: a value cannot be written as JSON.
    """
    schema, source = event.schema, event.source
    names = {name: getattr(source, name) for name in source.__struct_fields__}
    return {
        "event_id": event.id,
        "version": encode_version(event.version),
        "op": event.op.value,
        "committed_at": event.timestamp // 1000,
        "transaction_id": None if event.transaction is None else event.transaction.id,
        "source": _encode(names).decode(),
        # With nanoseconds: in a log no digit is lost, because JSON is text.
        "key": image_json(schema, event.key, nanoseconds=True),
        "before": image_json(schema, event.before, nanoseconds=True),
        "after": image_json(schema, event.after, nanoseconds=True),
        "not_sent": list(event.unavailable),
        "batch_writer": writer,
        "batch_epoch": epoch,
        "batch_index": index,
    }
