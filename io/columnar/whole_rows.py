"""Changes of whole rows in Arrow, on their way to a table of current rows. Needs the extra `arrow`.

Nearly all changes have a whole row, or delete one: no column keeps a value that the source did not send, and the row
keeps its key. The tasks make rows of the table of them, and the driver takes the newest row of each key, without a
Python object for any of them. All other changes stay events. If the driver needs events of these rows too, for example
because the columns of the table have changed, `WholeRows` gives them.

| column | content |
|---|---|
| the columns of the table | plain values (`penstock.event.plain_types`); a deletion has values of the key only |
| `KEY`, `VERSION`, `TIMESTAMP`, `DELETED` | see `penstock.io.columnar.table_rows` |
| `OP` | the operation of the event |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.event.arrow import arrow_array
from penstock.event.column_types import ColumnType, Kind
from penstock.event.keys import changed_key, key_rules
from penstock.event.model import ChangeEvent, Op, Source, TableSchema, Version
from penstock.event.plain_types import plain_images, plain_schema, plain_value
from penstock.event.replica import decode_version, encode_version
from penstock.io.columnar.arrow_rows import arrow_schema, rows_of_arrow
from penstock.io.columnar.known_keys import ChangedKeys
from penstock.io.columnar.table_rows import KEY, PREFIX, TIMESTAMP, VERSION, key_text, table_schema

OP = f"{PREFIX}op"

_INTEGERS = (Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64, Kind.UINT8, Kind.UINT16, Kind.UINT32)
_TEXTS = (Kind.STRING, Kind.UUID, Kind.ENUM)
_OPS = {Op.CREATE, Op.UPDATE, Op.DELETE, Op.READ}
_ESCAPED = r'["\\\x00-\x1f]'
"""Characters that a text in JSON does not have as they are."""


@lru_cache(maxsize=4096)
def are_whole(schema: TableSchema) -> bool:
    """Return whether changes of a table can be whole rows: events of the same values can be made of them again."""
    key = schema.key_columns
    return (
        bool(key)
        and has_plain_key(schema)
        and all(plain_value(column.type) is None or _is_number_as_text(column.type) for column in schema)
    )


def has_plain_key(schema: TableSchema) -> bool:
    """Return whether `key_texts` takes the keys of a table."""
    kinds = (column.type.kind for column in schema.key_columns)
    return all(kind in (*_INTEGERS, *_TEXTS) for kind in kinds) and not key_rules(schema)


def rows_of_changes(rows: pa.Table, schema: TableSchema) -> pa.Table | None:
    """Return change rows (`penstock.event.change_rows`) of a table as whole rows, in order; None if one is not whole.

    `schema` are the columns of their events, for which `are_whole` holds.
    """
    op, key, before, after, metadata = (
        _whole_array(rows.column(name)) for name in ("op", "key", "before", "after", "metadata")
    )
    # Looked at in the order of what it costs, because a batch has some hundred rows: nearly all have no old row.
    ops = set(pc.unique(op).to_pylist())
    deleted = pc.equal(op, str(Op.DELETE))
    of_key, of_row, others = _fields(key), _fields(after), _fields(metadata)
    is_whole = (
        ops <= _OPS
        and (after.null_count == 0 if Op.DELETE not in ops else pc.is_null(after).equals(deleted))
        and _has_all(others["not_sent"], deleted)
        and (before.null_count == len(before) or _keeps_key(_fields(before), of_key))
    )
    texts = key_texts(schema, list(of_key.values())) if is_whole else None
    if texts is None:
        return None
    columns = [of_key.get(column.name, of_row[column.name]) for column in schema]
    times = _whole_array(rows.column("timestamp"))
    return _table(schema, [*columns, texts, others["version"], times, deleted, op])


def _has_all(not_sent: pa.ListArray, deleted: pa.BooleanArray) -> bool:
    """Return whether no row lacks a column, except of deletions."""
    if not len(not_sent.flatten()):
        return True
    return not pc.any(pc.and_(pc.greater(pc.list_value_length(not_sent), 0), pc.invert(deleted))).as_py()


def _keeps_key(before: dict[str, pa.Array], key: dict[str, pa.Array]) -> bool:
    # A column that the row before the change lacks did not change.
    return all(_all(pc.fill_null(pc.equal(before[name], values), True)) for name, values in key.items())


def rows_of_events(events: Sequence[ChangeEvent], schema: TableSchema) -> pa.Table | None:
    """Return events of a table, all with the columns `schema`, as whole rows, in order; None if one is not whole.

    Raises:
        UnwritableError: a value that its column cannot hold; the message names the column.
    """
    if not are_whole(schema) or not all(_is_whole(event, schema) for event in events):
        return None
    source, to_plain = events[0].source, plain_images(schema)
    # A deletion has values of its key only.
    images = [(to_plain(event.after) or {}) | (event.key or {}) for event in events]
    columns = [
        arrow_array(column.name, column.type, [image.get(column.name) for image in images], "us", source)
        for column in plain_schema(schema)
    ]
    own = [
        pa.array([key_text(event.key or {}) for event in events], pa.string()),
        pa.array([encode_version(event.version) for event in events], pa.string()),
        pa.array([event.timestamp // 1000 for event in events], pa.int64()),
        pa.array([event.op is Op.DELETE for event in events], pa.bool_()),
        pa.array([str(event.op) for event in events], pa.string()),
    ]
    return _table(schema, [*columns, *own])


def keys_of(rows: pa.Table) -> ChangedKeys:
    """Return the keys of whole rows, one row for each key."""
    is_read = pc.equal(rows.column(OP), str(Op.READ))
    return ChangedKeys(rows.column(KEY).to_pylist, of_snapshot=bool(pc.any(is_read).as_py()))


def key_texts(schema: TableSchema, columns: Sequence[pa.Array]) -> pa.Array | None:
    """Return what `key_text` returns for each key, whose columns may be texts; None: a value has another form there.

    `has_plain_key` holds for the columns `schema` of the events.
    """
    texts = []
    for column, values in zip(schema.key_columns, columns, strict=True):
        if values.null_count:
            return None
        if column.type.kind in _INTEGERS:
            texts.append(values.cast(pa.string()))
        elif pc.any(pc.match_substring_regex(values, _ESCAPED)).as_py():
            return None
        else:
            texts.append(pc.binary_join_element_wise('"', values, '"', ""))
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*texts, ","), "]", "")


def newest(rows: pa.Table) -> pa.Table:
    """Return the row with the newest version of each key. Of equal versions the first row counts."""
    keys = _whole_array(rows.column(KEY)).dictionary_encode()
    if len(keys.dictionary) == len(keys):
        return rows
    last = np.empty(len(keys.dictionary), np.int64)
    order = _from_old_to_new(_whole_array(rows.column(VERSION)))
    # Of places that are given several times, the last value stays.
    last[keys.indices.to_numpy()[order]] = order
    return rows.take(pa.array(np.sort(last)))


def _from_old_to_new(versions: pa.Array) -> npt.NDArray[np.int64]:
    places = np.arange(len(versions))
    if _all(pc.less(versions[:-1], versions[1:])):
        return places
    # The first one of equal versions comes last.
    return np.lexsort((-places, pc.rank(versions, tiebreaker="dense").to_numpy()))


class WholeRows(Sequence[ChangeEvent]):
    """The changes of one table in an epoch: events, and whole rows, which become events if they are read as such.

    As a sequence it has all changes as events, in the order of their versions.
    """

    def __init__(
        self,
        source: Source,
        events: Iterable[ChangeEvent] = (),
        rows: Iterable[tuple[TableSchema, pa.Table]] = (),
    ) -> None:
        self.source, self._single, self._rows = source, list(events), list(rows)

    def add_rows(self, schema: TableSchema, rows: pa.Table) -> None:
        """Add rows. Call it before anything is read."""
        self._rows.append((schema, rows))

    @cached_property
    def table(self) -> tuple[TableSchema, pa.Table] | None:
        """The columns of all changes, and the row with the newest version of each key; None: events are needed."""
        schemas = {schema for schema, _ in self._rows} | {event.schema for event in self._single}
        if len(schemas) > 1:
            return None
        (schema,), parts = schemas, [rows for _, rows in self._rows]
        # A batch has a rest of a few changes, which are staged as events.
        if self._single:
            rest = rows_of_events(self._single, schema)
            if rest is None:
                return None
            parts.append(rest)
        return schema, newest(pa.concat_tables(parts))

    @cached_property
    def _events(self) -> list[ChangeEvent]:
        made = [event for schema, rows in self._rows for event in _events_of(rows, schema, self.source)]
        if not made:
            return self._single
        return sorted([*self._single, *made], key=_version_of)

    def __len__(self) -> int:
        return len(self._single) + sum(rows.num_rows for _, rows in self._rows)

    @overload
    def __getitem__(self, index: int) -> ChangeEvent: ...
    @overload
    def __getitem__(self, index: slice) -> list[ChangeEvent]: ...
    def __getitem__(self, index: int | slice) -> ChangeEvent | list[ChangeEvent]:
        return self._events[index]


def _events_of(rows: pa.Table, schema: TableSchema, source: Source) -> Iterable[ChangeEvent]:
    # A decimal that Arrow cannot hold is a text in the row, and a number in the event.
    numbers = [column.name for column in schema if _is_number_as_text(column.type)]
    key = [column.name for column in schema.key_columns]
    for row in rows_of_arrow(rows):
        for name in numbers:
            if row[name] is not None:
                row[name] = Decimal(row[name])
        op = Op(row[OP])
        after = None if op is Op.DELETE else {name: row[name] for name in schema.names}
        version = decode_version(row[VERSION])
        yield ChangeEvent(
            source, op, row[TIMESTAMP], {name: row[name] for name in key}, None, after, version, schema
        )


def _is_whole(event: ChangeEvent, schema: TableSchema) -> bool:
    if event.op not in _OPS or not event.key or changed_key(event) is not None:
        return False
    if event.after is None or event.op is Op.DELETE:
        return event.after is None and event.op is Op.DELETE
    return len(event.after) == len(schema.names)


def _is_number_as_text(type_: ColumnType) -> bool:
    return type_.kind is Kind.DECIMAL and plain_value(type_) is not None


def _table(schema: TableSchema, arrays: Sequence[pa.Array]) -> pa.Table:
    shape = _shape(schema)
    cast = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(arrays, shape, strict=True)
    ]
    return pa.Table.from_arrays(cast, schema=shape)


@lru_cache(maxsize=4096)
def _shape(schema: TableSchema) -> pa.Schema:
    return arrow_schema(table_schema(schema, "current")).append(pa.field(OP, pa.string()))


def _whole_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _fields(struct: pa.StructArray) -> dict[str, pa.Array]:
    """Return the columns of a struct, null where it is null."""
    return dict(zip((field.name for field in struct.type), struct.flatten(), strict=True))


def _all(flags: pa.Array) -> bool:
    # Of no rows it is true, as `all` of Python.
    return bool(pc.all(flags).as_py())


def _version_of(event: ChangeEvent) -> Version:
    return event.version
