"""The `source` block of a Debezium record, for each system: its fields in order, and their values. Pure.

Spanner: the fields of Debezium's own connector (3.x). PostgreSQL: the fields of Debezium's connector. Bigtable has no
Debezium connector: its block has the common fields, then the table, the cluster and the tiebreaker of the change. YDB
and all others: the common fields.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec

from penstock.event import CellChange, ChangeEvent, Op, Source, Transaction

CONNECTOR_VERSION = "0.1.0"


class Common(msgspec.Struct, frozen=True, gc=False):
    """The fields of every block, in their order. A Struct is made and encoded in half the time of a dict."""

    version: str
    connector: str
    name: str
    ts_ms: int
    snapshot: str | None
    db: str
    sequence: str | None
    ts_us: int | None
    ts_ns: int | None


class TableSource(Common, frozen=True, gc=False):
    """The block of a system that has no fields besides the common ones."""

    schema: str
    table: str


class SpannerSource(Common, frozen=True, gc=False):
    """The block of Debezium's Spanner connector.

    `low_watermark`, `read_at_timestamp` and `partition_token` are always null: they are facts of the reader at one
    moment, and would differ if a crash repeats the read.
    """

    project_id: str
    instance_id: str
    database_id: str
    change_stream_name: str
    table: str
    server_transaction_id: str | None
    record_sequence_prefix: str | None
    low_watermark: int | None
    read_at_timestamp: int | None
    number_records_in_transaction: int | None
    transaction_tag: str | None
    system_transaction: bool | None
    value_capture_type: str | None
    partition_token: str | None
    mod_number: int | None
    is_last_record_in_transaction_in_partition: bool | None
    number_of_partitions_in_transaction: int | None


class PostgresSource(TableSource, frozen=True, gc=False):
    """The block of Debezium's PostgreSQL connector."""

    tx_id: int | None = msgspec.field(name="txId")
    lsn: int | None
    xmin: int | None
    origin: str | None
    origin_lsn: int | None


class BigtableSource(Common, frozen=True, gc=False):
    """The block of Bigtable, which has no Debezium connector.

    `cells` are the entries of the change in their order, because images cannot show deletions and cell timestamps.
    """

    project_id: str
    instance_id: str
    table: str
    source_cluster: str | None
    is_gc: bool | None
    tiebreaker: int | None
    cells: tuple[BigtableCell, ...]


class BigtableCell(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of a Bigtable change; see `penstock.event.CellChange`. `number` is the input of an aggregate."""

    mod: str
    family: str = ""
    qualifier: bytes = b""
    start_us: int = 0
    end_us: int | None = None
    value: bytes | None = None
    number: int | None = None


Block = Callable[[ChangeEvent], msgspec.Struct]


def source_block(event: ChangeEvent, server: str) -> Common:
    """Return the `source` of an event."""
    return _BLOCKS.get(event.source.system, _table_source)(event, server)


def json_block(source: Source, server: str) -> Block:
    """Return the function from the events of one source to what msgspec encodes to the JSON of `source_block`."""
    if source.system == "spanner":
        return _spanner_json(source, server)
    if source.system == "postgresql":
        return _postgres_json(source, server)
    return lambda event: source_block(event, server)


def plain_block(source: Source, server: str) -> Callable[[ChangeEvent], dict[str, Any]]:
    """Return the function that makes the `source` of an event as a dict, for encoders that do not know Structs."""
    if source.system == "spanner":  # flat, and the attributes have the same names: in a fifth of the time
        return lambda event: msgspec.structs.asdict(source_block(event, server))
    return lambda event: _as_dict(source_block(event, server))


def _as_dict(struct: msgspec.Struct) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for attribute, name in _names(type(struct)):
        value = getattr(struct, attribute)
        shown[name] = [_as_dict(each) for each in value] if isinstance(value, tuple) else value
    return shown


@lru_cache(maxsize=64)
def _names(struct: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(struct))


@lru_cache(maxsize=64)  # else each table would derive the same schema
def source_schema(system: str) -> dict[str, Any]:
    """Return the Connect schema of the block of a system. All callers share it, so none may change it."""
    block, name = _SCHEMAS.get(system, (TableSource, f"io.penstock.{system}.Source"))
    # The schema is derived from the class, so both cannot differ.
    hints = get_type_hints(block)
    fields = [_field(field.encode_name, hints[field.name]) for field in msgspec.structs.fields(block)]
    return {
        "type": "struct",
        "fields": fields,
        "optional": False,
        "name": name,
        "version": 1,
        "field": "source",
    }


def _field(name: str, hint: Any) -> dict[str, Any]:
    if name == "snapshot":
        return _SNAPSHOT
    optional = isinstance(hint, UnionType)
    kind = next(each for each in get_args(hint) if each is not type(None)) if optional else hint
    if kind not in _CONNECT:  # the cells of Bigtable
        cell = [_field(each.name, each.type) for each in msgspec.structs.fields(BigtableCell)]
        items = {"type": "struct", "optional": False, "fields": cell}
        return {"type": "array", "optional": False, "items": items, "field": name}
    # Debezium declares the one 32-bit number of these blocks so.
    return {"type": "int32" if name == "mod_number" else _CONNECT[kind], "optional": optional, "field": name}


_SNAPSHOT = {
    "type": "string",
    "optional": True,
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    },
    "default": "false",
    "field": "snapshot",
}
_CONNECT = {str: "string", int: "int64", bool: "boolean", bytes: "bytes"}


def _snapshot(event: ChangeEvent) -> str:
    if event.op is not Op.READ:
        return "false"
    return "incremental" if event.incremental else "true"


def _table_source(event: ChangeEvent, server: str) -> TableSource:
    ns, source = event.timestamp, event.source
    return TableSource(
        CONNECTOR_VERSION,
        source.system,
        server,
        ns // 1_000_000,
        _snapshot(event),
        source.database,
        event.version.sequence,
        ns // 1_000,
        ns,
        source.schema,
        source.table,
    )


def _spanner(event: ChangeEvent, server: str) -> SpannerSource:
    ns, source, version, transaction = event.timestamp, event.source, event.version, event.transaction
    project, _, instance = source.server.partition("/")
    sequence, prefix = _spanner_sequence(version.sequence)
    # By position, as the class declares them. The three that are always None depend on the moment of the read.
    return SpannerSource(
        CONNECTOR_VERSION,
        "spanner",
        server,
        ns // 1_000_000,
        _snapshot(event),
        source.database,
        sequence,
        ns // 1_000,
        ns,
        project,
        instance,
        source.database,
        source.stream,
        f"{source.schema}.{source.table}" if source.schema else source.table,
        version.transaction,
        prefix,
        None,
        None,
        transaction.records if transaction else None,
        transaction.tag if transaction else "",
        transaction.system if transaction else False,
        source.capture,
        None,
        version.index,
        transaction.last_in_partition if transaction else None,
        transaction.partitions if transaction else None,
    )


@lru_cache(maxsize=4096)
def _spanner_sequence(text: str) -> tuple[str, str | None]:
    """Return `sequence` and `record_sequence_prefix` of Debezium's Spanner connector for a record sequence.

    ``00000001`` becomes ``1``. Streams with mutable key ranges send two hexadecimal numbers,
    ``963d1af435fb3e79-0000000a``: the connector keeps the first as it is and writes the second as a decimal number.
    """
    prefix, dash, last = text.rpartition("-")
    try:
        return str(int(last, 16 if dash else 10)), prefix or None
    except ValueError:
        return text, None


class _SpannerJson(msgspec.Struct, frozen=True, gc=False):
    """`SpannerSource` for msgspec's JSON encoder, with the neighbours that are equal for all events of a table as one.

    Each Raw holds the value of a member and the members after it. This makes a record a fifth cheaper.
    """

    version: msgspec.Raw
    ts_ms: int
    snapshot: msgspec.Raw
    sequence: str
    ts_us: int
    ts_ns: int
    project_id: msgspec.Raw
    server_transaction_id: str
    record_sequence_prefix: str | None
    low_watermark: msgspec.Raw
    number_records_in_transaction: int | None
    transaction_tag: str
    system_transaction: bool
    value_capture_type: msgspec.Raw
    mod_number: int
    is_last_record_in_transaction_in_partition: bool | None
    number_of_partitions_in_transaction: int | None


def _spanner_json(source: Source, server: str) -> Block:
    project, _, instance = source.server.partition("/")
    table = f"{source.schema}.{source.table}" if source.schema else source.table
    # Encoded once for a table: the members that no event changes, each group of neighbours as one text.
    version = _members(version=CONNECTOR_VERSION, connector="spanner", name=server)
    live, read = (_members(snapshot=text, db=source.database) for text in ("false", "true"))
    names = _members(
        project_id=project,
        instance_id=instance,
        database_id=source.database,
        change_stream_name=source.stream,
        table=table,
    )
    watermark = _members(low_watermark=None, read_at_timestamp=None)
    capture = _members(value_capture_type=source.capture, partition_token=None)
    # Its defaults are what `_spanner` writes for an event without a transaction.
    unknown = Transaction("")

    def block(event: ChangeEvent) -> _SpannerJson:
        ns, version_, transaction = event.timestamp, event.version, event.transaction or unknown
        us = ns // 1_000
        sequence, prefix = _spanner_sequence(version_.sequence)
        return _SpannerJson(
            version,
            us // 1_000,
            read if event.op is Op.READ else live,
            sequence,
            us,
            ns,
            names,
            version_.transaction,
            prefix,
            watermark,
            transaction.records,
            transaction.tag,
            transaction.system,
            capture,
            version_.index,
            transaction.last_in_partition,
            transaction.partitions,
        )

    return block


def _members(**members: Any) -> msgspec.Raw:
    """Return the JSON of an object's members without the first name and the braces."""
    first = next(iter(members))
    return msgspec.Raw(msgspec.json.encode(members)[len(first) + len('{"":') : -1])


class _PostgresJson(msgspec.Struct, frozen=True, gc=False):
    """`PostgresSource` for msgspec's JSON encoder; see `_SpannerJson`."""

    version: msgspec.Raw
    ts_ms: int
    snapshot: msgspec.Raw
    sequence: str
    ts_us: int
    ts_ns: int
    schema: msgspec.Raw
    tx_id: int | None = msgspec.field(name="txId")
    lsn: int
    xmin: None
    origin: str | None
    origin_lsn: int | None


def _postgres_json(source: Source, server: str) -> Callable[[ChangeEvent], _PostgresJson]:
    version = _members(version=CONNECTOR_VERSION, connector="postgresql", name=server)
    flags = {flag: _members(snapshot=flag, db=source.database) for flag in ("false", "true", "incremental")}
    names = _members(schema=source.schema, table=source.table)

    def block(event: ChangeEvent) -> _PostgresJson:
        at, transaction = event.version, event.transaction
        lsn = _postgres_lsn(event)
        if transaction is None:
            # A message outside of transactions is its own end; a row of a snapshot has no transaction before it.
            ns, previous = event.timestamp, None if event.op is Op.READ else lsn
            origin = origin_lsn = None
        else:
            previous = transaction.previous_end
            ns = event.timestamp if transaction.committed is None else transaction.committed
            origin, origin_lsn = transaction.origin or None, transaction.origin_position
        us = ns // 1_000
        return _PostgresJson(
            version,
            us // 1_000,
            flags[_snapshot(event)],
            f'[null,"{lsn}"]' if previous is None else f'["{previous}","{lsn}"]',
            us,
            ns,
            names,
            int(at.transaction) if at.transaction else None,
            lsn,
            None,
            origin,
            origin_lsn,
        )

    return block


def _postgres_lsn(event: ChangeEvent) -> int:
    version = event.version
    # The sequence of a READ is the time at which it was emitted.
    return version.order if event.op is Op.READ or not version.sequence else int(version.sequence)


def _postgresql(event: ChangeEvent, server: str) -> PostgresSource:
    ns, source, version, transaction = event.timestamp, event.source, event.version, event.transaction
    lsn = _postgres_lsn(event)
    # A message outside of transactions is its own end; a row of a snapshot has no transaction before it.
    previous = None if event.op is Op.READ else lsn
    if transaction is not None:
        previous = transaction.previous_end
        if transaction.committed is not None:
            ns = transaction.committed
    return PostgresSource(
        CONNECTOR_VERSION,
        "postgresql",
        server,
        ns // 1_000_000,
        _snapshot(event),
        source.database,
        f'[{"null" if previous is None else f"{chr(34)}{previous}{chr(34)}"},"{lsn}"]',
        ns // 1_000,
        ns,
        source.schema,
        source.table,
        int(version.transaction) if version.transaction else None,
        lsn,
        None,
        (transaction.origin or None) if transaction else None,
        transaction.origin_position if transaction else None,
    )


def _bigtable(event: ChangeEvent, server: str) -> BigtableSource:
    # Bigtable has no databases, so the instance is the `db` of the common fields.
    ns, source, transaction = event.timestamp, event.source, event.transaction
    project, _, instance = source.server.partition("/")
    return BigtableSource(
        CONNECTOR_VERSION,
        "bigtable",
        server,
        ns // 1_000_000,
        _snapshot(event),
        instance,
        event.version.sequence,
        ns // 1_000,
        ns,
        project,
        instance,
        source.table,
        transaction.origin if transaction else None,
        transaction.system if transaction else None,
        int(event.version.sequence or 0),
        tuple(map(_bigtable_cell, event.cells)),
    )


def _bigtable_cell(cell: CellChange) -> BigtableCell:
    value, is_number = cell.value, isinstance(cell.value, int)
    parts = (cell.mod, cell.family, cell.qualifier, cell.start_us, cell.end_us)
    return BigtableCell(*parts, None if is_number else value, value if is_number else None)  # type: ignore[arg-type]


_BLOCKS: dict[str, Callable[[ChangeEvent, str], Common]] = {
    "spanner": _spanner,
    "postgresql": _postgresql,
    "bigtable": _bigtable,
}

_SCHEMAS: dict[str, tuple[type[Common], str]] = {
    "spanner": (SpannerSource, "com.google.spanner.connector.Source"),
    "postgresql": (PostgresSource, "io.debezium.connector.postgresql.Source"),
    "bigtable": (BigtableSource, "io.penstock.bigtable.Source"),
}
