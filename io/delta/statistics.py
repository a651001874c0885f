"""The statistics of a file of a log, as an entry of Delta's log has them. Needs pyarrow.

Engines skip files by them. As Delta does by default, 32 columns have statistics: the columns by which a log is
filtered, then the columns of the source as they are after the change. Integers, texts and times have bounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.compat import UTC
from penstock.io.columnar.table_rows import KEY, PREFIX

_MOST_COLUMNS = 32
_LONGEST_TEXT = 64
"""Characters. A shorter text is still a bound."""
_LAST_CHARACTER = "\U0010ffff"

_FILTERED = (("op",), ("timestamp",), ("metadata", "version"), ("metadata", "order"))
_FILTERED_IN_FEED = (("_commit_version",), ("_commit_timestamp",), ("_change_type",))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The years that `datetime` and engines have.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_000_000

_Path = tuple[str, ...]
_Bound = Callable[[Any, bool], Any]
"""Makes a bound from the least or greatest value; the flag says that it is the upper one. None: there is no bound."""


def statistics_of(metadata: Any, schema: pa.Schema) -> str:
    """Return the JSON text for a file, from the metadata of Parquet and the Arrow schema of its rows."""
    nulls: dict[str, Any] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for path, type_, place in _columns(schema):
        groups = [
            metadata.row_group(number).column(place).statistics for number in range(metadata.num_row_groups)
        ]
        if not groups or not all(each is not None and each.has_null_count for each in groups):
            continue
        _put(nulls, path, sum(each.null_count for each in groups))
        if (bounds := _bounds(groups, type_)) is not None:
            _put(least, path, bounds[0])
            _put(greatest, path, bounds[1])
    found = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(found, separators=(",", ":"))


def _bounds(groups: Sequence[Any], type_: pa.DataType) -> tuple[Any, Any] | None:
    """Return the bounds of a column, from its statistics in each row group; None if it has no bounds."""
    bound = _bound_of(type_)
    with_values = [each for each in groups if each.num_values]
    # Parquet leaves bounds out that are very long.
    if bound is None or not with_values or not all(each.has_min_max for each in with_values):
        return None
    lower = bound(min(_value(each, "min", type_) for each in with_values), False)
    upper = bound(max(_value(each, "max", type_) for each in with_values), True)
    return None if lower is None or upper is None else (lower, upper)


def _columns(schema: pa.Schema) -> Sequence[tuple[_Path, pa.DataType, int]]:
    """Return the columns that get statistics, each with its place among the leaves of the file."""
    leaves = [(path, type_, place) for place, (path, type_) in enumerate(_leaves(schema))]
    # Rows of a table and not changes: their keys and versions are looked for.
    if (KEY,) in {path for path, _, _ in leaves}:
        return sorted(leaves, key=lambda each: not each[0][0].startswith(PREFIX))[:_MOST_COLUMNS]
    by_path = {path: (path, type_, place) for path, type_, place in leaves}
    # A change feed: the columns of the source are columns of the table.
    if by_path.keys() >= set(_FILTERED_IN_FEED):
        others = [
            each for each in leaves if each[0] not in _FILTERED_IN_FEED and not pa.types.is_list(each[1])
        ]
        return [*(by_path[path] for path in _FILTERED_IN_FEED), *others][:_MOST_COLUMNS]
    first = [by_path[path] for path in _FILTERED if path in by_path]
    for image in ("key", "after"):
        first += [each for each in leaves if each[0][0] == image and not pa.types.is_list(each[1])]
    return first[:_MOST_COLUMNS]


def _leaves(
    fields: Any, above: _Path = (), inside: pa.DataType | None = None
) -> Iterator[tuple[_Path, pa.DataType]]:
    """Yield path and type of each leaf in the order of Parquet. Leaves below a list have the type of the list."""
    for field in fields:
        path, type_ = (*above, field.name), field.type
        if pa.types.is_struct(type_):
            yield from _leaves(type_, path, inside)
        elif pa.types.is_list(type_):
            yield from _leaves([pa.field("element", type_.value_type)], path, inside or type_)
        else:
            yield path, inside or type_


def _value(statistics: Any, which: str, type_: pa.DataType) -> Any:
    # Times as integers, because `datetime` cannot hold them all.
    return getattr(statistics, f"{which}_raw" if pa.types.is_timestamp(type_) else which)


def _bound_of(type_: pa.DataType) -> _Bound | None:
    if pa.types.is_integer(type_):
        return lambda value, is_upper: value
    if pa.types.is_string(type_):
        return _text_bound
    # A time without a zone has another text, and few logs are filtered by one.
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return _time_bound
    return None


def _text_bound(value: str, is_upper: bool) -> str | None:
    if len(value) <= _LONGEST_TEXT or not is_upper:
        return value[:_LONGEST_TEXT]
    # Above every text with this beginning, unless the rest begins with the same character.
    return None if value[_LONGEST_TEXT] == _LAST_CHARACTER else value[:_LONGEST_TEXT] + _LAST_CHARACTER


def _time_bound(microseconds: int, is_upper: bool) -> str | None:
    if not _FIRST_US <= microseconds < _LAST_US:
        return None
    # Delta's bounds of times have milliseconds.
    milliseconds = -(-microseconds // 1000) if is_upper else microseconds // 1000
    time = _EPOCH + timedelta(milliseconds=milliseconds)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z".rjust(24, "0")


def _put(values: dict[str, Any], path: _Path, value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value
