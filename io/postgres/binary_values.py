"""Converts the binary form of a PostgreSQL value to the text that the server prints for it. Pure.

With `binary 'true'` the server sends values in the form of each type's send function. Records always hold texts, so
that rows of the log, rows of snapshots and keys of both compare equal. The texts are the ones that a session with
`text_values.SESSION_SETTINGS` and, for money, the C locale gets.

Source: the `*_send` functions of PostgreSQL (src/backend/utils/adt), which its documentation names as the definition of
the binary forms.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from decimal import Decimal
from struct import Struct, unpack_from
from uuid import UUID

from penstock.errors import SetupError
from penstock.event.column_types import ColumnType, Kind
from penstock.event.float32 import shortest
from penstock.io.postgres.column_types import TypeCatalog, column_type
from penstock.io.postgres.record import Row, Table

Show = Callable[[bytes], str]

_INT16, _INT32, _INT64 = Struct("!h").unpack, Struct("!i").unpack, Struct("!q").unpack
_UINT32, _UINT64 = Struct("!I").unpack, Struct("!Q").unpack
_LAST64, _FIRST64 = (1 << 63) - 1, -(1 << 63)
_LAST32, _FIRST32 = (1 << 31) - 1, -(1 << 31)
_SECOND, _DAY = 1_000_000, 86_400_000_000
_2000 = 730_425
"""Days from 0000-03-01 to 2000-01-01, where the server's dates begin."""


def binary_reader(type_: ColumnType, catalog: TypeCatalog | None = None) -> Show | None:
    """Return the function from the binary form to the text; None: the binary form of the type is not known here."""
    if type_.element is not None:
        element = binary_reader(type_.element, catalog)
        delimiter = ";" if type_.element.native == "box" else ","
        return None if element is None else lambda data: _array(data, element, delimiter)
    if type_.kind is Kind.ENUM:
        return bytes.decode
    # timestamp(3) with time zone
    name = re.sub(r"\(.*?\)", "", type_.native)
    if name in _SHOW:
        return _SHOW[name]
    if name in _RANGES:
        return _range_reader(name)
    if name.removesuffix("multirange") + "range" in _RANGES:
        return _multirange_reader(name.removesuffix("multirange") + "range")
    if name in ("hstore", "ltree", "citext"):
        return _EXTENSIONS[name]
    entry = next((each for each in (catalog or {}).values() if each.name == name.rpartition(".")[2]), None)
    return (lambda data: _composite(data, catalog)) if entry is not None and entry.category == "c" else None


class TextRows:
    """Turns rows whose values have the binary form into rows of texts."""

    def __init__(self, catalog: Callable[[], TypeCatalog]) -> None:
        """`catalog`: returns the types that users and extensions defined."""
        self._catalog = catalog
        self._tables: dict[int, tuple[Table, list[Show]]] = {}

    def __call__(self, table: Table, row: Row) -> Row:
        """Return the row; NULL, values that were not sent, and texts stay.

        Raises:
            SetupError: a column has a type whose binary form is not known.
        """
        # Compared by identity: a new description is a new object, and a comparison by value would walk all columns.
        known, shows = self._tables.get(table.oid, (None, []))
        if known is not table:
            shows = [self._show(table, number) for number in range(len(table.columns))]
            self._tables[table.oid] = table, shows
        return tuple(
            [
                show(value) if isinstance(value, bytes) else value
                for show, value in zip(shows, row, strict=True)
            ]
        )

    def _show(self, table: Table, number: int) -> Show:
        column = table.columns[number]
        found = binary_reader(column.type, self._catalog())
        if found is None:
            raise SetupError(
                f"column {column.name} of {table} has the type {column.type.native}, whose binary form is not known: "
                "set binary=False"
            )
        return found


def _boolean(data: bytes) -> str:
    return "t" if data != b"\0" else "f"


def _float8(data: bytes) -> str:
    (value,) = unpack_from("!d", data)
    return _float(value, repr(value), 15)


def _float4(data: bytes) -> str:
    (value,) = unpack_from("!f", data)
    return _float(value, repr(shortest(value)), 6)


def _float(value: float, text: str, digits: int) -> str:
    """Return a number as PostgreSQL prints it: with an exponent below 1e-4, and from 10**`digits` on."""
    # The difference is 0 for every number, and NaN for NaN and infinities.
    if value - value != 0:
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    sign, figures, exponent = Decimal(text).as_tuple()
    shown = "".join(map(str, figures)).rstrip("0") or "0"
    assert isinstance(exponent, int)
    point = len(figures) + exponent - 1 if value else 0  # the exponent of the first figure
    minus = "-" if sign else ""
    if point < -4 or point >= digits:
        rest = f".{shown[1:]}" if len(shown) > 1 else ""
        return f"{minus}{shown[0]}{rest}e{'-' if point < 0 else '+'}{abs(point):02d}"
    if point < 0:
        return f"{minus}0.{'0' * (-point - 1)}{shown}"
    whole, rest = shown[: point + 1].ljust(point + 1, "0"), shown[point + 1 :]
    return f"{minus}{whole}.{rest}" if rest else f"{minus}{whole}"


_NUMERIC_SIGNS = {0x0000: "", 0x4000: "-"}
_NUMERIC_SPECIAL = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}


def _numeric(data: bytes) -> str:
    count, weight, sign, scale = unpack_from("!HhHH", data)
    if sign in _NUMERIC_SPECIAL:
        return _NUMERIC_SPECIAL[sign]
    groups = unpack_from(
        f"!{count}H", data, 8
    )  # figures to the base 10,000; the first one times 10,000**weight

    # The server leaves out groups of zeros at both ends.
    def group(place: int) -> int:
        return groups[place] if 0 <= place < count else 0

    whole = "".join(f"{group(place):04d}" for place in range(weight + 1)).lstrip("0") or "0"
    first = weight + 1
    rest = "".join(f"{group(first + place):04d}" for place in range((scale + 3) // 4))[:scale]
    return f"{_NUMERIC_SIGNS[sign]}{whole}.{rest}" if scale else f"{_NUMERIC_SIGNS[sign]}{whole}"


def _money(data: bytes) -> str:
    (cents,) = _INT64(data)
    return f"{'-' if cents < 0 else ''}${abs(cents) // 100:,}.{abs(cents) % 100:02d}"


def _civil(days: int) -> tuple[str, str]:
    """Return a day since 2000-01-01 as ``YYYY-MM-DD`` and its era: " BC" or the empty string.

    Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days. A year starts in March here.
    """
    era, day = divmod(days + _2000, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    year += era * 400 + (month >= 10)
    shown = f"{(month + 2) % 12 + 1:02d}-{day + 1:02d}"
    return (f"{year:04d}-{shown}", "") if year > 0 else (f"{1 - year:04d}-{shown}", " BC")


def _clock(micros: int) -> str:
    seconds, fraction = divmod(micros, _SECOND)
    shown = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{shown}.{fraction:06d}".rstrip("0") if fraction else shown


def _date(data: bytes) -> str:
    (days,) = _INT32(data)
    if days in (_LAST32, _FIRST32):
        return "infinity" if days > 0 else "-infinity"
    return "".join(_civil(days))


def _time(data: bytes) -> str:
    return _clock(_INT64(data)[0])


def _zone(seconds_west: int) -> str:
    # The server counts zones to the west as positive, and prints them with a minus.
    sign, rest = ("-" if seconds_west > 0 else "+"), abs(seconds_west)
    parts = [f"{rest // 3600:02d}", f"{rest // 60 % 60:02d}", f"{rest % 60:02d}"]
    while len(parts) > 1 and parts[-1] == "00":
        parts.pop()
    return sign + ":".join(parts)


def _time_with_zone(data: bytes) -> str:
    micros, seconds_west = unpack_from("!qi", data)
    return _clock(micros) + _zone(seconds_west)


def _timestamp(data: bytes, zone: str = "") -> str:
    (micros,) = _INT64(data)
    if micros in (_LAST64, _FIRST64):
        return "infinity" if micros > 0 else "-infinity"
    days, rest = divmod(micros, _DAY)
    day, era = _civil(days)
    return f"{day} {_clock(rest)}{zone}{era}"


def _timestamp_with_zone(data: bytes) -> str:
    return _timestamp(data, "+00")


def _interval(data: bytes) -> str:
    micros, days, months = unpack_from("!qii", data)
    if (micros, days, months) == (_LAST64, _LAST32, _LAST32):
        return "infinity"
    if (micros, days, months) == (_FIRST64, _FIRST32, _FIRST32):
        return "-infinity"
    # Years and months have one sign, and so have all parts of the time.
    years, months = _divided(months, 12)
    seconds, fraction = _divided(micros, _SECOND)
    minutes, seconds = _divided(seconds, 60)
    hours, minutes = _divided(minutes, 60)
    day = "".join(f"{count}{unit}" for count, unit in ((years, "Y"), (months, "M"), (days, "D")) if count)
    clock = "".join(f"{count}{unit}" for count, unit in ((hours, "H"), (minutes, "M")) if count)
    if seconds or fraction:
        minus = "-" if micros < 0 else ""
        shown = f".{abs(fraction):06d}".rstrip("0") if fraction else ""
        clock += f"{minus}{abs(seconds)}{shown}S"
    return f"P{day}T{clock}" if clock else f"P{day}" if day else "PT0S"


def _divided(value: int, by: int) -> tuple[int, int]:
    """Return quotient and rest with the sign of the value, as C divides."""
    quotient, rest = divmod(abs(value), by)
    return (quotient, rest) if value >= 0 else (-quotient, -rest)


def _floats(data: bytes, at: int = 0) -> list[str]:
    return [_float8(data[place : place + 8]) for place in range(at, len(data), 8)]


def _points(data: bytes, at: int = 0) -> list[str]:
    numbers = _floats(data, at)
    return [f"({x},{y})" for x, y in zip(numbers[::2], numbers[1::2], strict=True)]


def _path(data: bytes) -> str:
    # A byte says whether the path is closed, and four have the number of points.
    inner = ",".join(_points(data, 5))
    return f"({inner})" if data[0] else f"[{inner}]"


def _circle(data: bytes) -> str:
    x, y, radius = _floats(data)
    return f"<({x},{y}),{radius}>"


def _network(data: bytes) -> str:
    family, bits, is_cidr, size = data[:4]
    address = socket.inet_ntop(socket.AF_INET if family == 2 else socket.AF_INET6, data[4 : 4 + size])
    # Type inet shows no length for a single host, type cidr always does.
    return f"{address}/{bits}" if is_cidr or bits != 8 * size else address


def _bits(data: bytes) -> str:
    (count,) = unpack_from("!i", data)
    return "".join(f"{byte:08b}" for byte in data[4:])[:count]


def _lsn(data: bytes) -> str:
    (value,) = _UINT64(data)
    return f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"


def _tid(data: bytes) -> str:
    block, offset = unpack_from("!IH", data)
    return f"({block},{offset})"


def _char(data: bytes) -> str:
    """Return the text of a type "char": one byte; bytes above 127 are printed in octal."""
    if data == b"\0":
        return ""
    return f"\\{data[0]:03o}" if data[0] > 127 else data.decode()


def _text_vector(data: bytes) -> str:
    (count,) = unpack_from("!i", data)
    at, words = 4, []
    for _ in range(count):
        end = data.index(0, at)
        word = data[at:end].decode().replace("\\", "\\\\").replace("'", "''")
        (positions,) = unpack_from("!H", data, end + 1)
        at = end + 3
        places = unpack_from(f"!{positions}H", data, at)
        at += 2 * positions
        # The two upper bits are the weight. D is the default, which is not printed.
        shown = ",".join(f"{place & 0x3FFF}{('', 'C', 'B', 'A')[place >> 14]}" for place in places)
        words.append(f"'{word}'" + (f":{shown}" if shown else ""))
    return " ".join(words)


def _versioned_text(data: bytes) -> str:
    """Return a text after a byte with the version of the form."""
    if data[0] != 1:
        raise ValueError("a version of the binary form that is not known")
    return data[1:].decode()


_SHOW: Mapping[str, Show] = {
    "boolean": _boolean,
    "bytea": lambda data: "\\x" + data.hex(),
    '"char"': _char,
    "bigint": lambda data: str(_INT64(data)[0]),
    "smallint": lambda data: str(_INT16(data)[0]),
    "integer": lambda data: str(_INT32(data)[0]),
    **dict.fromkeys(("oid", "xid", "cid"), lambda data: str(_UINT32(data)[0])),
    "xid8": lambda data: str(_UINT64(data)[0]),
    **dict.fromkeys(("text", "name", "json", "xml", "character", "character varying"), bytes.decode),
    **dict.fromkeys(("jsonb", "jsonpath"), _versioned_text),
    "tid": _tid,
    "point": lambda data: _points(data)[0],
    "lseg": lambda data: f"[{','.join(_points(data))}]",
    "path": _path,
    "box": lambda data: ",".join(_points(data)),
    "polygon": lambda data: f"({','.join(_points(data, 4))})",
    "line": lambda data: f"{{{','.join(_floats(data))}}}",
    "circle": _circle,
    "cidr": _network,
    "inet": _network,
    "macaddr": lambda data: data.hex(":"),
    "macaddr8": lambda data: data.hex(":"),
    "real": _float4,
    "double precision": _float8,
    "money": _money,
    "numeric": _numeric,
    "date": _date,
    "time without time zone": _time,
    "time with time zone": _time_with_zone,
    "timestamp without time zone": _timestamp,
    "timestamp with time zone": _timestamp_with_zone,
    "interval": _interval,
    "bit": _bits,
    "bit varying": _bits,
    "uuid": lambda data: str(UUID(bytes=data)),
    "pg_lsn": _lsn,
    "tsvector": _text_vector,
}


# Types that consist of others.

_SPECIAL_IN_ARRAY = re.compile(r'[\s{}"\\]|^null$', re.IGNORECASE)


def _array(data: bytes, element: Show, delimiter: str) -> str:
    dimensions, _, _ = unpack_from("!iiI", data)
    if not dimensions:
        return "{}"
    # The head has three numbers; then each dimension has its size and its lower bound.
    sizes = [unpack_from("!ii", data, 12 + 8 * number) for number in range(dimensions)]
    values = iter(_fields(data, 12 + 8 * dimensions))

    def item() -> str:
        value = next(values)
        if value is None:
            return "NULL"
        text = element(value)
        if text and delimiter not in text and not _SPECIAL_IN_ARRAY.search(text):
            return text
        return f'"{_escaped(text)}"'

    def level(number: int) -> str:
        if number == dimensions:
            return item()
        return f"{{{delimiter.join(level(number + 1) for _ in range(sizes[number][0]))}}}"

    # The server prints the bounds of all dimensions if one of them does not begin at 1.
    bounds = [f"[{first}:{first + count - 1}]" for count, first in sizes]
    prefix = "" if all(first == 1 for _, first in sizes) else "".join(bounds) + "="
    return prefix + level(0)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _fields(data: bytes, at: int) -> list[bytes | None]:
    """Return the parts up to the end, each after its length; -1 is NULL."""
    found: list[bytes | None] = []
    while at < len(data):
        (size,) = unpack_from("!i", data, at)
        at += 4
        found.append(None if size < 0 else data[at : at + size])
        at += max(size, 0)
    return found


_SPECIAL_IN_ROW = re.compile(r'[\s(),"\\]')
_SPECIAL_IN_RANGE = re.compile(r'[\s()\[\],"\\]')


def _quoted(text: str, special: re.Pattern[str]) -> str:
    """Return a part of a row or of a range, in quotes where they are needed; quotes in it are doubled."""
    if text and not special.search(text):
        return text
    doubled = text.replace("\\", "\\\\").replace('"', '""')
    return f'"{doubled}"'


def _composite(data: bytes, catalog: TypeCatalog | None) -> str:
    (count,) = unpack_from("!i", data)
    at, parts = 4, []
    for _ in range(count):
        oid, size = unpack_from("!Ii", data, at)
        at += 8
        if size < 0:
            # NULL is printed as nothing. An empty text is printed in quotes.
            parts.append("")
            continue
        show = binary_reader(column_type(oid, -1, catalog), catalog)
        if show is None:
            raise ValueError("a part of a composite value has a type whose binary form is not known")
        parts.append(_quoted(show(data[at : at + size]), _SPECIAL_IN_ROW))
        at += size
    return f"({','.join(parts)})"


_RANGES = {
    "int4range": "integer",
    "int8range": "bigint",
    "numrange": "numeric",
    "tsrange": "timestamp without time zone",
    "tstzrange": "timestamp with time zone",
    "daterange": "date",
}
_EMPTY, _LOWER_INCLUDED, _UPPER_INCLUDED, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16


def _range_reader(name: str) -> Show:
    bound = _SHOW[_RANGES[name]]

    def show(data: bytes) -> str:
        flags = data[0]
        if flags & _EMPTY:
            return "empty"
        # An infinite bound is not in the data, so the parts are the finite bounds only.
        texts = (_quoted(bound(part or b""), _SPECIAL_IN_RANGE) for part in _fields(data, 1))
        lower = "" if flags & _LOWER_INFINITE else next(texts)
        upper = "" if flags & _UPPER_INFINITE else next(texts)
        ends = "[" if flags & _LOWER_INCLUDED else "(", "]" if flags & _UPPER_INCLUDED else ")"
        return f"{ends[0]}{lower},{upper}{ends[1]}"

    return show


def _multirange_reader(name: str) -> Show:
    show = _range_reader(name)
    return lambda data: f"{{{','.join(show(part or b'') for part in _fields(data, 4))}}}"


def _hstore(data: bytes) -> str:
    def quoted(part: bytes | None) -> str:
        return "NULL" if part is None else f'"{_escaped(part.decode())}"'

    parts = _fields(data, 4)
    return ", ".join(
        f"{quoted(key)}=>{quoted(value)}" for key, value in zip(parts[::2], parts[1::2], strict=True)
    )


_EXTENSIONS: Mapping[str, Show] = {"hstore": _hstore, "ltree": _versioned_text, "citext": bytes.decode}
