"""The changes that a published file has. Needs the packages of its format."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.event.change_rows import IMAGES
from penstock.event.model import Image, Op
from penstock.io.columnar.arrow_rows import rows_of_arrow
from penstock.verify.replay import Change


class UnreadableLineError(ValueError):
    """A line is no change of the table as it is now. The text names the line and shows no values."""


@dataclass(frozen=True, slots=True)
class FileChanges:
    """`columns` of the rows, and the changes in their order."""

    columns: frozenset[str]
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class FileKind:
    """Files of one sink. `suffix`: of their names. `read`: gets the content; it raises a ValueError for other files."""

    suffix: str
    read: Callable[[bytes], FileChanges]


def changes_of_arrow(table: pa.Table) -> FileChanges:
    """Return the changes of change rows.

    Raises:
        ValueError: the table has no change rows.
    """
    if not {"op", "metadata"} <= set(table.column_names):
        raise ValueError("it has no columns of change rows")
    metadata = pa.Table.from_struct_array(table.column("metadata"))
    ops, versions = table.column("op").to_pylist(), metadata.column("version").to_pylist()
    not_sent = metadata.column("not_sent").to_pylist()
    keys, before, after = (_images(table, name) for name in IMAGES)
    columns = table.schema.field("after").type.names if "after" in table.column_names else ()
    old_keys = map(_old_key, ops, keys, before)
    changes = zip(ops, versions, keys, old_keys, after, not_sent, strict=True)
    return FileChanges(frozenset(columns), [Change(*each) for each in changes])


def _old_key(op: str, key: Image | None, before: Image | None) -> Image | None:
    if op != Op.UPDATE or key is None or before is None:
        return None
    # A column that was not sent did not change.
    return {name: value if before[name] is None else before[name] for name, value in key.items()}


def _images(table: pa.Table, name: str) -> list[Image | None]:
    """Return the images of a column; None where an event has no such image."""
    if name not in table.column_names:  # a table without a key, or without known columns
        return [None] * table.num_rows
    column = table.column(name)
    absent = column.is_null().to_pylist()
    rows = rows_of_arrow(pa.Table.from_struct_array(column))
    return [None if is_absent else row for row, is_absent in zip(rows, absent, strict=True)]


def _of_parquet(content: bytes) -> FileChanges:
    import pyarrow.parquet

    return changes_of_arrow(pyarrow.parquet.read_table(io.BytesIO(content)))


def _of_avro(content: bytes) -> FileChanges:
    from penstock.io.columnar.avro_reader import change_rows_of_avro

    return changes_of_arrow(change_rows_of_avro(content))


KINDS: Mapping[str, FileKind] = {
    "avro": FileKind(".avro", _of_avro),
    "parquet": FileKind(".parquet", _of_parquet),
}
"""By the name of the sink."""
