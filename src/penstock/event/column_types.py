"""Logical types of columns, shared by all sources, and the Python value that stands for each. Pure.

| Kind | Python value |
|---|---|
| BOOL | `bool` |
| INT8 … INT64, UINT8 … UINT64 | `int`, of any size up to the type's bounds |
| FLOAT32, FLOAT64 | `float`, also NaN and infinities |
| DECIMAL | `decimal.Decimal`, with its scale; PostgreSQL also has NaN and infinities |
| STRING, JSON, ENUM, OTHER | `str`; JSON is the text as the source sent it; OTHER is the source's own text form |
| BYTES, PROTO | `bytes` |
| UUID | `str`, 36 characters, lower case |
| DATE | `int`, days since 1970-01-01 |
| TIME | `int`, nanoseconds since midnight |
| TIMESTAMP | `int`, nanoseconds since 1970-01-01T00:00:00Z |
| LOCAL_TIMESTAMP | `int`, nanoseconds since 1970-01-01T00:00:00 on a clock without a time zone |
| INTERVAL | `Interval` |
| ARRAY | `list` of element values |
| STRUCT | `dict` from field name to value |

NULL is `None` in every kind, also inside an ARRAY. PostgreSQL's infinite dates and timestamps are the floats
`inf` and `-inf`. Integers are used for dates and times because `datetime` neither has nanoseconds nor years before 1
and after 9999.
"""

from __future__ import annotations

import msgspec

from penstock.compat import StrEnum


class Kind(StrEnum):
    """The logical type of a column, independent of the source."""

    BOOL = "BOOL"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    FLOAT32 = "FLOAT32"
    FLOAT64 = "FLOAT64"
    DECIMAL = "DECIMAL"
    STRING = "STRING"
    BYTES = "BYTES"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    LOCAL_TIMESTAMP = "LOCAL_TIMESTAMP"
    INTERVAL = "INTERVAL"
    JSON = "JSON"
    UUID = "UUID"
    ENUM = "ENUM"
    PROTO = "PROTO"
    ARRAY = "ARRAY"
    STRUCT = "STRUCT"
    OTHER = "OTHER"


class ColumnType(msgspec.Struct, frozen=True, array_like=True):
    """The type of a column: its logical kind and the source's own name for it.

    `native` is the type in the source's words, such as ``NUMERIC``, ``timestamp(3) with time zone`` or
    ``INT64``. `precision` and `scale` belong to DECIMAL, and are None where the source does not limit them.
    `element` belongs to ARRAY, `fields` to STRUCT. `name` is the qualified name of a PROTO, an ENUM or another
    type that users define. `labels` are the values of an ENUM in their order, empty if the source does not say.
    """

    kind: Kind
    native: str = ""
    precision: int | None = None
    scale: int | None = None
    element: ColumnType | None = None
    fields: tuple[Field, ...] = ()
    name: str = ""
    labels: tuple[str, ...] = ()


class Field(msgspec.Struct, frozen=True, array_like=True):
    """A field of a STRUCT."""

    name: str
    type: ColumnType


class Interval:
    """A span of time in three independent parts, as SQL has it: a month or a day has no fixed length.

    `months` (12 per year), `days` and `nanoseconds` may have different signs.
    """

    # A plain class, not a Struct or a tuple: msgspec encodes those as lists, and the coder could not tell them
    # from an ARRAY.
    __slots__ = ("days", "months", "nanoseconds")

    def __init__(self, months: int = 0, days: int = 0, nanoseconds: int = 0) -> None:
        self.months = months
        self.days = days
        self.nanoseconds = nanoseconds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Interval) and self.parts() == other.parts()

    def __hash__(self) -> int:
        return hash(self.parts())

    def __repr__(self) -> str:
        return f"Interval(months={self.months}, days={self.days}, nanoseconds={self.nanoseconds})"

    def __reduce__(self) -> tuple[type[Interval], tuple[int, int, int]]:
        return Interval, self.parts()

    def parts(self) -> tuple[int, int, int]:
        """Return (months, days, nanoseconds)."""
        return self.months, self.days, self.nanoseconds
