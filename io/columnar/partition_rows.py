"""Divides rows by the partitions of their table. Needs pyarrow. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.io.columnar.partitions import TimeUnit

_NUMPY_UNITS: dict[str, Any] = {"year": "Y", "month": "M", "day": "D", "hour": "h"}


class PartitionColumn(NamedTuple):
    """The values of a partition field for the rows of a table: `value_of` one of the values in `array`."""

    array: pa.ChunkedArray
    value_of: Callable[[Any], Any] = lambda value: value


def divided(rows: pa.Table, columns: Sequence[PartitionColumn]) -> list[tuple[tuple[Any, ...], pa.Table]]:
    """Return the rows of each partition with its values. The rows of a partition keep their order."""
    if not rows.num_rows:
        return []
    coded = [_codes(column) for column in columns]
    whole = np.zeros(rows.num_rows, np.int64)
    for values, codes in coded:
        # Numbered again for each field, so that the product of many fields stays small.
        whole = np.unique(whole * len(values) + codes, return_inverse=True)[1].reshape(-1)
    order = np.argsort(whole, kind="stable")
    starts = np.flatnonzero(np.diff(whole[order], prepend=-1))
    if len(starts) == 1:
        return [(_values_at(coded, 0), rows)]
    return [
        (_values_at(coded, places[0]), rows.take(pa.array(places))) for places in np.split(order, starts[1:])
    ]


def ordinals(times: pa.ChunkedArray, unit: TimeUnit) -> pa.Array:
    """Return how many units of time each time is after the begin of 1970, in UTC; null for null."""
    units, nulls = _units(times, unit)
    return pa.array(units.astype(np.int64), pa.int64(), mask=nulls)


def texts(times: pa.ChunkedArray, unit: TimeUnit) -> pa.Array:
    """Return the unit of time of each time as an ISO text in UTC, such as 2026-01-31 or 2026-01-31T16."""
    units, nulls = _units(times, unit)
    different, places = np.unique(units, return_inverse=True)
    names = pa.array(np.datetime_as_string(different).tolist(), pa.string())
    return names.take(pa.array(places.reshape(-1), pa.int64(), mask=nulls))


def _units(
    times: pa.ChunkedArray, unit: TimeUnit
) -> tuple[npt.NDArray[np.datetime64], npt.NDArray[np.bool_]]:
    is_date = pa.types.is_date(times.type)
    whole = (
        times.cast(pa.int32()) if is_date else times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    )
    nulls = np.asarray(times.is_null())
    numbers = np.asarray(whole.fill_null(0)).astype(np.int64)
    fine = numbers.astype("datetime64[D]" if is_date else "datetime64[us]")
    return fine.astype(f"datetime64[{_NUMPY_UNITS[unit]}]"), nulls


def _codes(column: PartitionColumn) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """Return the different values of a field, and for each row the place of its value."""
    array = column.array
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if isinstance(array, pa.ChunkedArray):  # without rows
        array = pa.concat_arrays(array.chunks)
    coded = array.dictionary_encode("encode")
    values = [column.value_of(each) for each in coded.dictionary.to_pylist()]
    # Several values of a column may be in one partition.
    different = {value: place for place, value in enumerate(dict.fromkeys(values))}
    places = np.array([different[value] for value in values], np.int64)
    return list(different), places[np.asarray(coded.indices)]


def _values_at(coded: Sequence[tuple[list[Any], npt.NDArray[np.int64]]], row: int) -> tuple[Any, ...]:
    return tuple(values[codes[row]] for values, codes in coded)
