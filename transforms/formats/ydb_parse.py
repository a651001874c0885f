"""YDB changefeed records back to events: all modes, both flavours, barriers and schema changes. Pure.

    parse = YdbParser(schema, Source("ydb", database="/local", table="orders"), mode="NEW_IMAGE")
    event = parse(key, value)

| record | result |
|---|---|
| `update` | UPDATE, with the key and the columns of `update` or `newImage` in `after` |
| `update` without `oldImage`, in mode NEW_AND_OLD_IMAGES | CREATE: there was no row before |
| `reset` | UPDATE with every column of the schema; those that the record lacks are NULL |
| `erase` | DELETE |
| a row of the initial scan | READ; JSON does not mark these, so give `snapshot`, their virtual timestamp |
| `tableChanges` | SCHEMA, with the new columns |
| `resolved` | a `Barrier`, which is no event |

With `ts`, or `step` and `txId`, an event has the version (step, transaction id); timestamps are milliseconds. Without
them, give `timestamp` and `version`, such as the offset in the topic.

Source: YDB documentation, "Change Data Capture" (Record structure).
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.event import ChangeEvent, Column, Image, Op, Source, TableSchema, Transaction, Version
from penstock.event.keys import canonical_key
from penstock.transforms.formats.capture import Mode
from penstock.transforms.formats.ydb_types import Mapping, column_type, type_mapping

_Raws = dict[str, msgspec.Raw]


class Barrier(msgspec.Struct, frozen=True):
    """Every change with an earlier virtual timestamp has been written to this partition of the topic."""

    step: int
    tx_id: int

    @property
    def timestamp(self) -> int:
        """The step in nanoseconds since the epoch."""
        return self.step * 1_000_000


class _Value(msgspec.Struct):
    key: list[msgspec.Raw] | None = None
    update: _Raws | None = None
    reset: _Raws | None = None
    erase: dict[str, Any] | None = None
    newImage: _Raws | None = None  # noqa: N815  (names of the format)
    oldImage: _Raws | None = None  # noqa: N815
    ts: tuple[int, int] | None = None
    user: str = ""
    resolved: tuple[int, int] | None = None
    tableChanges: list[_TableChange] | None = None  # noqa: N815
    payload: _Payload | None = None


class _TableChange(msgspec.Struct):
    table: _ChangedTable


class _ChangedTable(msgspec.Struct):
    columns: dict[str, str | _ChangedColumn]
    schemaVersion: int = 0  # noqa: N815
    primaryKeyColumnNames: list[str] | str = []  # noqa: N815  (a text in some releases)


class _ChangedColumn(msgspec.Struct):
    type: str
    notNull: bool | None = None  # noqa: N815


class _Payload(msgspec.Struct):
    op: str
    before: _Raws | None = None
    after: _Raws | None = None
    source: _Source | None = None


class _Source(msgspec.Struct):
    step: int = 0
    txId: int = 0  # noqa: N815


class _Key(msgspec.Struct):
    payload: _Raws


_decode = msgspec.json.Decoder(_Value).decode
_decode_key = msgspec.json.Decoder(_Key).decode
_decode_any = msgspec.json.decode


class YdbParser:
    """Parses the records of one changefeed of one table.

    `schema` gives the types, which records do not name. `mode` lets the parser tell a CREATE from an UPDATE.
    `snapshot` is the virtual timestamp of the initial scan. `extended_dates`: see `YdbFormat`, for schemas of other
    sources; columns of YDB say their type themselves.
    """

    def __init__(
        self,
        schema: TableSchema,
        source: Source,
        *,
        mode: Mode | None = None,
        snapshot: tuple[int, int] | None = None,
        extended_dates: bool = False,
    ) -> None:
        self._schema, self._mode, self._snapshot = schema, mode, snapshot
        self._source = source
        self._extended = extended_dates
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_types", "_keys")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def _prepare(self) -> None:
        self._types: dict[str, Mapping] = {
            column.name: type_mapping(column.type, self._extended) for column in self._schema
        }
        self._keys = [(column.name, self._types[column.name].parse) for column in self._schema.key_columns]

    def __call__(
        self,
        key: bytes | None,
        value: bytes,
        *,
        timestamp: int = 0,
        version: Version | None = None,
        initial_scan: bool = False,
    ) -> ChangeEvent | Barrier:
        """Return the event or the barrier of a record.

        `key` is the message key, which only the Debezium flavour needs. `timestamp` and `version` are used if the
        record has no virtual timestamp. `initial_scan`: the caller knows that it is a row of the initial scan.

        Raises:
            ValueError: not a record of a changefeed, or a value that does not have the type of its column.
        """
        try:
            record = _decode(value)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a record of a YDB changefeed: {error}") from None
        # Barriers and schema changes first: their records have no key and no operation.
        if record.resolved is not None:
            return Barrier(*record.resolved)
        if record.tableChanges:
            return self._schema_change(record.tableChanges[0].table, record.ts)
        # The Debezium flavour has its key in the message key, and all other parts in `payload`.
        if record.payload is not None:
            return self._debezium(key, record.payload)
        # `erase` is an empty object, and so is `update` in the image modes: only None means that a part is absent.
        if record.key is None or (record.update, record.reset, record.erase).count(None) != 2:
            raise ValueError("a record of a YDB changefeed has a key and one of update, reset and erase")
        if record.erase:
            raise ValueError("a record of a YDB changefeed has columns in erase: an erase has no columns")
        is_scan = initial_scan or (record.ts is not None and record.ts == self._snapshot)
        return self._change(record, record.key, timestamp, version, is_scan)

    def _change(
        self,
        record: _Value,
        raw_key: list[msgspec.Raw],
        timestamp: int,
        version: Version | None,
        is_scan: bool,
    ) -> ChangeEvent:
        if len(raw_key) != len(self._keys):
            raise ValueError(f"a key has {len(raw_key)} values, and the schema {len(self._keys)} key columns")
        key = {
            name: self._parsed(name, parse, raw)
            for (name, parse), raw in zip(self._keys, raw_key, strict=True)
        }
        old = None if record.oldImage is None else key | self._image(record.oldImage)
        op = Op.UPDATE
        before, after = old, None
        if record.erase is not None:
            op = Op.DELETE
        elif record.reset is not None:
            # A reset replaces the whole row: a column that it lacks is NULL.
            after = dict.fromkeys(self._schema.names) | key | self._image(record.newImage or record.reset)
        else:
            after = key | self._image(record.newImage if record.newImage is not None else record.update or {})
            if self._mode == "NEW_AND_OLD_IMAGES" and old is None:
                op = Op.CREATE
        # The scan has rows only: an erase with its timestamp is a change.
        if is_scan and op is not Op.DELETE:
            op, before, after = Op.READ, None, old if record.newImage is None and old else after
        return self._event(op, key, before, after, record.ts, record.user, timestamp, version)

    def _debezium(self, raw_key: bytes | None, payload: _Payload) -> ChangeEvent:
        before, after = (
            None if image is None else self._image(image) for image in (payload.before, payload.after)
        )
        # Images of this flavour have the key columns too. Without an image only the message key has them.
        row = after or before or (self._image(_decode_key(raw_key).payload) if raw_key else {})
        key = {name: row[name] for name, _ in self._keys if name in row}
        if len(key) != len(self._keys):
            raise ValueError("a record without images needs its message key")
        op = _OPS.get(payload.op)
        if op is None:
            raise ValueError(f"op {payload.op!r} does not exist in YDB's Debezium flavour")
        if op is Op.READ:
            # In the mode OLD_IMAGE the initial scan shows the row as the old one.
            before, after = None, after or before or key
        elif op is not Op.DELETE and after is None:
            after = key
        source = payload.source
        ts = None if source is None else (source.step, source.txId)
        return self._event(op, key, before, after, ts, "", 0, None)

    def _schema_change(self, table: _ChangedTable, ts: tuple[int, int] | None) -> ChangeEvent:
        keys = table.primaryKeyColumnNames
        names = [keys] if isinstance(keys, str) else keys
        columns = []
        for name, column in table.columns.items():
            type_, not_null = (column, None) if isinstance(column, str) else (column.type, column.notNull)
            position = names.index(name) + 1 if name in names else None
            nullable = None if not_null is None else not not_null
            columns.append(Column(name, column_type(type_), nullable, position))
        event = self._event(Op.SCHEMA, None, None, None, ts, "", 0, None)
        # The number of the schema is the place of the change within its transaction.
        version = msgspec.structs.replace(event.version, sequence=f"{table.schemaVersion:020d}")
        return msgspec.structs.replace(event, schema=TableSchema(tuple(columns)), version=version)

    def _event(
        self,
        op: Op,
        key: Image | None,
        before: Image | None,
        after: Image | None,
        ts: tuple[int, int] | None,
        user: str,
        timestamp: int,
        version: Version | None,
    ) -> ChangeEvent:
        transaction, key = None, key and canonical_key(self._schema, key)
        if ts is not None:
            step, tx_id = ts
            # Texts compare as numbers if they have the same length.
            timestamp, version = step * 1_000_000, Version(step, f"{tx_id:020d}")
            transaction = Transaction(str(tx_id))
        return ChangeEvent(
            self._source,
            op,
            timestamp,
            key,
            before,
            after,
            version or Version(0),
            self._schema,
            transaction,
            user=user,
        )

    def _image(self, raws: _Raws) -> Image:
        types = self._types
        return {
            name: self._parsed(name, types[name].parse if name in types else _decode_any, raw)
            for name, raw in raws.items()
        }

    def _parsed(self, name: str, parse: Any, raw: msgspec.Raw) -> Any:
        if bytes(raw) == b"null":
            return None
        try:
            return parse(raw)
        except (ValueError, ArithmeticError, TypeError):
            kind = self._types[name].name if name in self._types else "JSON value"
            raise ValueError(
                f"column {name} of {self._source.table}: the value does not have the form of a {kind}"
            ) from None


_OPS = {"c": Op.CREATE, "u": Op.UPDATE, "d": Op.DELETE, "r": Op.READ}
