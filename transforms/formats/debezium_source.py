"""The `source` block of a Debezium record, for each system: its fields in order, and their values. Pure.

Spanner: the fields of Debezium's own connector (3.x). PostgreSQL: those of Debezium's connector. Bigtable has no Debezium
connector: its block has the common fields, then the table, the cluster and the tiebreaker of the change. YDB and
all others: the common fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.event import ChangeEvent, Op

Block = dict[str, Any]

CONNECTOR_VERSION = "0.1.0"


def source_block(event: ChangeEvent, server: str) -> Block:
    """Return the `source` of an event, in the order of its fields."""
    return _BLOCKS.get(event.source.system, _common)(event, server)


def source_schema(system: str) -> dict[str, Any]:
    """Return the Connect schema of the block of a system."""
    fields = [
        {"type": kind, "optional": optional, "field": name} for name, kind, optional in _FIELDS.get(system, _COMMON)
    ]
    name = {
        "spanner": "com.google.spanner.connector.Source",
        "postgresql": "io.debezium.connector.postgresql.Source",
    }.get(system, f"io.penstock.{system}.Source")
    return {"type": "struct", "fields": fields, "optional": False, "name": name, "version": 1, "field": "source"}


def _times(timestamp: int) -> tuple[int, int, int]:
    return timestamp // 1_000_000, timestamp // 1_000, timestamp


def _snapshot(event: ChangeEvent) -> str:
    return "true" if event.op is Op.READ else "false"


def _common(event: ChangeEvent, server: str) -> Block:
    ms, us, ns = _times(event.timestamp)
    source = event.source
    return {
        "version": CONNECTOR_VERSION,
        "connector": source.system,
        "name": server,
        "ts_ms": ms,
        "snapshot": _snapshot(event),
        "db": source.database,
        "sequence": event.version.sequence,
        "ts_us": us,
        "ts_ns": ns,
        "schema": source.schema,
        "table": source.table,
    }


def _spanner(event: ChangeEvent, server: str) -> Block:
    ms, us, ns = _times(event.timestamp)
    source, version, transaction = event.source, event.version, event.transaction
    project, _, instance = source.server.partition("/")
    return {
        "version": CONNECTOR_VERSION,
        "connector": "spanner",
        "name": server,
        "ts_ms": ms,
        "snapshot": _snapshot(event),
        "db": source.database,
        "sequence": version.sequence,
        "ts_us": us,
        "ts_ns": ns,
        "project_id": project,
        "instance_id": instance,
        "database_id": source.database,
        "change_stream_name": source.stream,
        "table": f"{source.schema}.{source.table}" if source.schema else source.table,
        "server_transaction_id": version.transaction,
        "record_sequence_prefix": None,
        # Three facts of the reader at one moment, which would differ if a crash repeats the read.
        "low_watermark": None,
        "read_at_timestamp": None,
        "number_records_in_transaction": transaction and transaction.records,
        "transaction_tag": transaction.tag if transaction else "",
        "system_transaction": bool(transaction and transaction.system),
        "value_capture_type": source.capture,
        "partition_token": None,
        "mod_number": version.index,
        "is_last_record_in_transaction_in_partition": transaction and transaction.last_in_partition,
        "number_of_partitions_in_transaction": transaction and transaction.partitions,
    }


def _postgresql(event: ChangeEvent, server: str) -> Block:
    ms, us, ns = _times(event.timestamp)
    source, version = event.source, event.version
    lsn = int(version.sequence) if version.sequence else version.order
    return {
        "version": CONNECTOR_VERSION,
        "connector": "postgresql",
        "name": server,
        "ts_ms": ms,
        "snapshot": _snapshot(event),
        "db": source.database,
        "sequence": f'["{version.order}","{lsn}"]',
        "ts_us": us,
        "ts_ns": ns,
        "schema": source.schema,
        "table": source.table,
        "txId": int(version.transaction) if version.transaction else None,
        "lsn": lsn,
        "xmin": None,
        "origin": (event.transaction.origin or None) if event.transaction else None,
        "origin_lsn": None,
    }


def _bigtable(event: ChangeEvent, server: str) -> Block:
    ms, us, ns = _times(event.timestamp)
    project, _, instance = event.source.server.partition("/")
    transaction = event.transaction
    return {
        "version": CONNECTOR_VERSION,
        "connector": "bigtable",
        "name": server,
        "ts_ms": ms,
        "snapshot": _snapshot(event),
        "db": instance,
        "sequence": event.version.sequence,
        "ts_us": us,
        "ts_ns": ns,
        "project_id": project,
        "instance_id": instance,
        "table": event.source.table,
        "source_cluster": transaction.origin if transaction else "",
        "is_gc": bool(transaction and transaction.system),
        "tiebreaker": int(event.version.sequence or 0),
    }


_BLOCKS: dict[str, Callable[[ChangeEvent, str], Block]] = {
    "spanner": _spanner,
    "postgresql": _postgresql,
    "bigtable": _bigtable,
}

_START = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("snapshot", "string", True),
    ("db", "string", False),
    ("sequence", "string", True),
    ("ts_us", "int64", True),
    ("ts_ns", "int64", True),
)
_COMMON = (*_START, ("schema", "string", False), ("table", "string", False))
_FIELDS: dict[str, tuple[tuple[str, str, bool], ...]] = {
    "spanner": (
        *_START,
        ("project_id", "string", False),
        ("instance_id", "string", False),
        ("database_id", "string", False),
        ("change_stream_name", "string", False),
        ("table", "string", True),
        ("server_transaction_id", "string", True),
        ("record_sequence_prefix", "string", True),
        ("low_watermark", "int64", True),
        ("read_at_timestamp", "int64", True),
        ("number_records_in_transaction", "int64", True),
        ("transaction_tag", "string", True),
        ("system_transaction", "boolean", True),
        ("value_capture_type", "string", True),
        ("partition_token", "string", True),
        ("mod_number", "int32", True),
        ("is_last_record_in_transaction_in_partition", "boolean", True),
        ("number_of_partitions_in_transaction", "int64", True),
    ),
    "postgresql": (
        *_COMMON,
        ("txId", "int64", True),
        ("lsn", "int64", True),
        ("xmin", "int64", True),
        ("origin", "string", True),
        ("origin_lsn", "int64", True),
    ),
    "bigtable": (
        *_START,
        ("project_id", "string", False),
        ("instance_id", "string", False),
        ("table", "string", False),
        ("source_cluster", "string", True),
        ("is_gc", "boolean", True),
        ("tiebreaker", "int64", True),
    ),
}
