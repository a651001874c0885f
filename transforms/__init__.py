"""Transforms over the changes of any source.

    events = (
        changes
        | ToChangeEvents(server="my-project/main", database="shop")
        | FilterEvents(tables="Orders")
        | MaskColumns({"Email": hashed(secret)})
    )

Each transform's docstring says which order it keeps, what may repeat after a crash, what holds the watermark back, and
which state grows. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.transforms.assemble_transactions import AssembledTransaction, AssembleTransactions
    from penstock.transforms.change_events import ToChangeEvents
    from penstock.transforms.columns import (
        Mask,
        MaskColumns,
        RenameColumns,
        SelectColumns,
        hashed,
        redacted,
        truncated,
    )
    from penstock.transforms.dead_letters import DeadLetter, DeadLetters
    from penstock.transforms.deduplicate import Deduplicate
    from penstock.transforms.expression import RowExpression
    from penstock.transforms.filter import FilterEvents
    from penstock.transforms.flatten import FlattenAfter
    from penstock.transforms.formats.capture import check_capture
    from penstock.transforms.formats.change_feed import ChangeFeedFormat
    from penstock.transforms.formats.cloudevents import CloudEventsFormat
    from penstock.transforms.formats.debezium import DebeziumFormat
    from penstock.transforms.formats.dynamodb import DynamoDbFormat
    from penstock.transforms.formats.event_envelope import EventFormat
    from penstock.transforms.formats.format_events import (
        AddTransactionMetadata,
        FormatEvents,
        FormatShardRecords,
        FormatTransactions,
    )
    from penstock.transforms.formats.formatted import FormattedRecord
    from penstock.transforms.formats.google_templates import BigtableChangeLogFormat, SpannerBigQueryFormat
    from penstock.transforms.formats.ydb import YdbFormat
    from penstock.transforms.formats.ydb_parse import YdbParser
    from penstock.transforms.formats.ydb_position import VirtualTimestamp
    from penstock.transforms.materialize_rows import MaterializeRows
    from penstock.transforms.order_by_key import OrderByKey
    from penstock.transforms.parsers.debezium import DebeziumParser
    from penstock.transforms.parsers.envelope import EventParser
    from penstock.transforms.routing import RouteEvents, ShardByKey
    from penstock.transforms.schema_events import AddSchemaEvents
    from penstock.transforms.virtual_timestamps import (
        Barriers,
        ShardRecord,
        VirtualTimestamps,
    )

__all__ = [
    "AddSchemaEvents",
    "AddTransactionMetadata",
    "AssembleTransactions",
    "AssembledTransaction",
    "Barriers",
    "BigtableChangeLogFormat",
    "ChangeFeedFormat",
    "CloudEventsFormat",
    "DeadLetter",
    "DeadLetters",
    "DebeziumFormat",
    "DebeziumParser",
    "Deduplicate",
    "DynamoDbFormat",
    "EventFormat",
    "EventParser",
    "FilterEvents",
    "FlattenAfter",
    "FormatEvents",
    "FormatShardRecords",
    "FormatTransactions",
    "FormattedRecord",
    "Mask",
    "MaskColumns",
    "MaterializeRows",
    "OrderByKey",
    "RenameColumns",
    "RouteEvents",
    "RowExpression",
    "SelectColumns",
    "ShardByKey",
    "ShardRecord",
    "SpannerBigQueryFormat",
    "ToChangeEvents",
    "VirtualTimestamp",
    "VirtualTimestamps",
    "YdbFormat",
    "YdbParser",
    "check_capture",
    "hashed",
    "redacted",
    "truncated",
]

_HOMES = {
    "AddSchemaEvents": "schema_events",
    "AddTransactionMetadata": "formats.format_events",
    "AssembleTransactions": "assemble_transactions",
    "AssembledTransaction": "assemble_transactions",
    "Barriers": "virtual_timestamps",
    "BigtableChangeLogFormat": "formats.google_templates",
    "ChangeFeedFormat": "formats.change_feed",
    "CloudEventsFormat": "formats.cloudevents",
    "DeadLetter": "dead_letters",
    "DeadLetters": "dead_letters",
    "DebeziumFormat": "formats.debezium",
    "DebeziumParser": "parsers.debezium",
    "Deduplicate": "deduplicate",
    "DynamoDbFormat": "formats.dynamodb",
    "EventFormat": "formats.event_envelope",
    "EventParser": "parsers.envelope",
    "FilterEvents": "filter",
    "FlattenAfter": "flatten",
    "FormatEvents": "formats.format_events",
    "FormatShardRecords": "formats.format_events",
    "FormatTransactions": "formats.format_events",
    "FormattedRecord": "formats.formatted",
    "Mask": "columns",
    "MaskColumns": "columns",
    "MaterializeRows": "materialize_rows",
    "OrderByKey": "order_by_key",
    "RenameColumns": "columns",
    "RouteEvents": "routing",
    "RowExpression": "expression",
    "SelectColumns": "columns",
    "ShardByKey": "routing",
    "ShardRecord": "virtual_timestamps",
    "SpannerBigQueryFormat": "formats.google_templates",
    "ToChangeEvents": "change_events",
    "VirtualTimestamp": "formats.ydb_position",
    "VirtualTimestamps": "virtual_timestamps",
    "YdbFormat": "formats.ydb",
    "YdbParser": "formats.ydb_parse",
    "check_capture": "formats.capture",
    "hashed": "columns",
    "redacted": "columns",
    "truncated": "columns",
}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
