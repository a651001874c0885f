"""Requests and answers of the Spanner service as messages, and what they say as values.

Source: google/spanner/v1/spanner.proto, mutation.proto, keys.proto, result_set.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from google.cloud.spanner_v1.types import result_set as result_set_types
from google.cloud.spanner_v1.types import spanner as spanner_types
from google.cloud.spanner_v1.types import transaction as transaction_types
from google.cloud.spanner_v1.types import type as type_types

from penstock_emulators.simulated_spanner import wire
from penstock_emulators.simulated_spanner.column_type import ColumnType
from penstock_emulators.simulated_spanner.errors import unimplemented
from penstock_emulators.simulated_spanner.expression import Typed
from penstock_emulators.simulated_spanner.key_set import KeyRange, KeySet
from penstock_emulators.simulated_spanner.mutation import (
    INSERT,
    REPLACE,
    UPDATE,
    UPSERT,
    Delete,
    Mutation,
    Write,
)
from penstock_emulators.simulated_spanner.record_encoding import (
    fill_column_type,
    fill_value,
    python_value,
    value_bytes,
)
from penstock_emulators.simulated_spanner.rows import order_of
from penstock_emulators.simulated_spanner.schema import Table
from penstock_emulators.simulated_spanner.statement import Result
from penstock_emulators.simulated_spanner.timestamp import SECOND
from penstock_emulators.simulated_spanner.transaction import AnyTransaction, Session, Snapshot
from penstock_emulators.simulated_spanner.value import canonical

_ResultSet = result_set_types.ResultSet.pb()
_ResultSetStats = result_set_types.ResultSetStats.pb()
_Session = spanner_types.Session.pb()
_Transaction = transaction_types.Transaction.pb()
_TypeCode = type_types.TypeCode
_Annotation = type_types.TypeAnnotationCode

_ROWS_OF_A_MESSAGE = 200


def session_message(session: Session) -> Any:
    """Return a Session message."""
    return _Session(name=session.name, multiplexed=session.multiplexed)


def transaction_message(transaction: AnyTransaction, options: Any) -> Any:
    """Return a Transaction message, with the read timestamp if the options ask for it."""
    message = _Transaction(id=transaction.id)
    if isinstance(transaction, Snapshot) and options.read_only.return_read_timestamp:
        seconds, nanos = divmod(transaction.timestamp, SECOND)
        message.read_timestamp.seconds, message.read_timestamp.nanos = seconds, nanos
    return message


def typed_params(request: Any) -> dict[str, Typed]:
    """Return the parameters of a statement with their types."""
    return {
        name: (
            python_value(value),
            _column_type(request.param_types[name]) if name in request.param_types else None,
        )
        for name, value in request.params.fields.items()
    }


def _column_type(message: Any) -> ColumnType | None:
    if not message.code:
        return None
    code = _TypeCode(message.code).name
    element = _column_type(message.array_element_type) if code == "ARRAY" else None
    annotation = _Annotation(message.type_annotation).name if message.type_annotation else ""
    return ColumnType(code, element, annotation, message.proto_type_fqn)


def mutation(session: Session, message: Any) -> Mutation:
    """Return the mutation that a Mutation message says."""
    kind = message.WhichOneof("operation")
    if kind == "delete":
        table = session.database.schema.table(message.delete.table)
        return Delete(table.name, key_set(table, message.delete.key_set))
    if kind not in (INSERT, UPDATE, UPSERT, REPLACE):
        raise unimplemented(f"The mutation {kind}.")
    write = getattr(message, kind)
    rows = tuple(tuple([python_value(value) for value in row.values]) for row in write.values)
    return Write(kind, write.table, tuple(write.columns), rows)


def key_set(table: Table, message: Any) -> KeySet:
    """Return the keys that a KeySet message says."""
    return KeySet(
        tuple(_key(table, key) for key in message.keys),
        tuple(_range(table, each) for each in message.ranges),
        # proto-plus calls the field `all_`, because `all` is a function of Python.
        message.all_ if hasattr(message, "all_") else message.all,
    )


def _key(table: Table, message: Any) -> tuple[Any, ...]:
    values = [python_value(value) for value in message.values]
    kinds = [table.columns[number].kind for number in table.key]
    # `strict=False`: the end of a range may be a prefix of the key.
    return tuple(canonical(value, kind) for value, kind in zip(values, kinds, strict=False))


def _range(table: Table, message: Any) -> KeyRange:
    start_kind, end_kind = message.WhichOneof("start_key_type"), message.WhichOneof("end_key_type")
    return KeyRange(
        order_of(table, _key(table, getattr(message, start_kind))),
        order_of(table, _key(table, getattr(message, end_kind))),
        start_kind == "start_closed",
        end_kind == "end_closed",
    )


def fill_row_type(metadata: Any, columns: list[tuple[str, ColumnType]]) -> None:
    """Set the row type of a ResultSetMetadata message."""
    # Present, even without columns: clients read the field.
    metadata.row_type.SetInParent()
    for name, kind in columns:
        field = metadata.row_type.fields.add()
        field.name = name
        fill_column_type(field.type_, kind)


def stats_bytes(result: Result) -> bytes:
    """Return an encoded ResultSetStats of a DML statement; nothing for a query."""
    if result.mutations is None:
        return b""
    stats: bytes = _ResultSetStats(row_count_exact=result.row_count).SerializeToString()
    return stats


def messages(metadata: Any, rows: Any, stats: bytes = b"") -> Iterator[bytes]:
    """Yield the encoded PartialResultSets of rows; the last has the encoded ResultSetStats."""
    encoded = metadata.SerializeToString()
    source = iter(rows)
    # One batch ahead, because the last message carries the statistics.
    last = list(islice(source, _ROWS_OF_A_MESSAGE))
    while True:
        following = list(islice(source, _ROWS_OF_A_MESSAGE))
        message = wire.partial_result_set([value_bytes(v) for row in last for v in row], metadata=encoded)
        if not following:
            yield message + (wire.field(b"\x2a", stats) if stats else b"")
            return
        yield message
        # The row type comes with the first message only.
        encoded, last = b"", following


def result_set(metadata: Any, result: Result) -> Any:
    """Return the ResultSet message of a result."""
    message = _ResultSet(metadata=metadata)
    for row in result.rows:
        target = message.rows.add()
        for value in row:
            fill_value(target.values.add(), value)
    if result.mutations is not None:
        message.stats.row_count_exact = result.row_count
    return message
