"""The logical type of a PostgreSQL column, and the reader of its values. Pure.

Built-in types are known by their fixed object ids (`pg_type.dat`). Types that users or extensions defined (enums,
domains, composites, ranges, hstore, citext, their arrays) have another id in each database; a `TypeCatalog`, read from
`pg_type`, describes them. Without an entry a type is OTHER: its values stay as the server's text. So do types without
a logical type: ranges, network addresses, geometry, bit strings, money, times with a time zone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.event.column_types import ColumnType, Kind
from penstock.io.postgres import text_values
from penstock.io.postgres.text_values import Convert


class CatalogType(msgspec.Struct, frozen=True):
    """An entry of `pg_type`.

    `category`: `typtype`: 'b' base, 'c' composite, 'd' domain, 'e' enum, 'r' range, 'm' multirange. `element_oid`:
    of a true array (`typcategory` 'A'), else 0. `base_oid` and `base_modifier`: of a domain. `labels`: of an enum.
    """

    oid: int
    schema: str
    name: str
    category: str = "b"
    element_oid: int = 0
    base_oid: int = 0
    base_modifier: int = -1
    labels: Sequence[str] = ()


TypeCatalog = Mapping[int, CatalogType]


class _BuiltIn(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    array_oid: int
    has_modifier: bool = False


_BUILT_INS: dict[int, _BuiltIn] = {
    16: _BuiltIn("boolean", Kind.BOOL, 1000),
    17: _BuiltIn("bytea", Kind.BYTES, 1001),
    18: _BuiltIn('"char"', Kind.STRING, 1002),
    19: _BuiltIn("name", Kind.STRING, 1003),
    20: _BuiltIn("bigint", Kind.INT64, 1016),
    21: _BuiltIn("smallint", Kind.INT16, 1005),
    23: _BuiltIn("integer", Kind.INT32, 1007),
    24: _BuiltIn("regproc", Kind.OTHER, 1008),
    25: _BuiltIn("text", Kind.STRING, 1009),
    26: _BuiltIn("oid", Kind.UINT32, 1028),
    27: _BuiltIn("tid", Kind.OTHER, 1010),
    28: _BuiltIn("xid", Kind.UINT32, 1011),
    29: _BuiltIn("cid", Kind.UINT32, 1012),
    114: _BuiltIn("json", Kind.JSON, 199),
    142: _BuiltIn("xml", Kind.OTHER, 143),
    600: _BuiltIn("point", Kind.OTHER, 1017),
    601: _BuiltIn("lseg", Kind.OTHER, 1018),
    602: _BuiltIn("path", Kind.OTHER, 1019),
    603: _BuiltIn("box", Kind.OTHER, 1020),
    604: _BuiltIn("polygon", Kind.OTHER, 1027),
    628: _BuiltIn("line", Kind.OTHER, 629),
    650: _BuiltIn("cidr", Kind.OTHER, 651),
    700: _BuiltIn("real", Kind.FLOAT32, 1021),
    701: _BuiltIn("double precision", Kind.FLOAT64, 1022),
    718: _BuiltIn("circle", Kind.OTHER, 719),
    774: _BuiltIn("macaddr8", Kind.OTHER, 775),
    790: _BuiltIn("money", Kind.OTHER, 791),
    829: _BuiltIn("macaddr", Kind.OTHER, 1040),
    869: _BuiltIn("inet", Kind.OTHER, 1041),
    1042: _BuiltIn("character", Kind.STRING, 1014, True),
    1043: _BuiltIn("character varying", Kind.STRING, 1015, True),
    1082: _BuiltIn("date", Kind.DATE, 1182),
    1083: _BuiltIn("time without time zone", Kind.TIME, 1183, True),
    1114: _BuiltIn("timestamp without time zone", Kind.LOCAL_TIMESTAMP, 1115, True),
    1184: _BuiltIn("timestamp with time zone", Kind.TIMESTAMP, 1185, True),
    1186: _BuiltIn("interval", Kind.INTERVAL, 1187),
    1266: _BuiltIn("time with time zone", Kind.OTHER, 1270, True),
    1560: _BuiltIn("bit", Kind.OTHER, 1561, True),
    1562: _BuiltIn("bit varying", Kind.OTHER, 1563, True),
    1700: _BuiltIn("numeric", Kind.DECIMAL, 1231, True),
    2950: _BuiltIn("uuid", Kind.UUID, 2951),
    3220: _BuiltIn("pg_lsn", Kind.OTHER, 3221),
    3614: _BuiltIn("tsvector", Kind.OTHER, 3643),
    3615: _BuiltIn("tsquery", Kind.OTHER, 3645),
    3802: _BuiltIn("jsonb", Kind.JSON, 3807),
    3904: _BuiltIn("int4range", Kind.OTHER, 3905),
    3906: _BuiltIn("numrange", Kind.OTHER, 3907),
    3908: _BuiltIn("tsrange", Kind.OTHER, 3909),
    3910: _BuiltIn("tstzrange", Kind.OTHER, 3911),
    3912: _BuiltIn("daterange", Kind.OTHER, 3913),
    3926: _BuiltIn("int8range", Kind.OTHER, 3927),
    4072: _BuiltIn("jsonpath", Kind.OTHER, 4073),
    4451: _BuiltIn("int4multirange", Kind.OTHER, 6150),
    4532: _BuiltIn("nummultirange", Kind.OTHER, 6151),
    4533: _BuiltIn("tsmultirange", Kind.OTHER, 6152),
    4534: _BuiltIn("tstzmultirange", Kind.OTHER, 6153),
    4535: _BuiltIn("datemultirange", Kind.OTHER, 6155),
    4536: _BuiltIn("int8multirange", Kind.OTHER, 6157),
    5069: _BuiltIn("xid8", Kind.UINT64, 271),
}
_ARRAYS = {built_in.array_oid: oid for oid, built_in in _BUILT_INS.items()}

_TIMES = (1083, 1114, 1184, 1266)
"""Types whose modifier is the number of digits of a second."""
_WITHOUT_ENTRY = "unknown"


def column_type(oid: int, modifier: int = -1, catalog: TypeCatalog | None = None) -> ColumnType:
    """Return the logical type of a column with this type id and type modifier."""
    built_in = _BUILT_INS.get(oid)
    if built_in is not None:
        return _built_in_type(oid, built_in, modifier)
    if oid in _ARRAYS:
        # The modifier of an array is the one of its elements.
        return _array_type(column_type(_ARRAYS[oid], modifier))
    entry = (catalog or {}).get(oid)
    if entry is None:
        return ColumnType(Kind.OTHER, _WITHOUT_ENTRY)
    if entry.element_oid:
        return _array_type(column_type(entry.element_oid, modifier, catalog))
    name = entry.name if entry.schema in ("public", "pg_catalog") else f"{entry.schema}.{entry.name}"
    if entry.category == "d":
        # A domain has the values of its base type; its own modifier stands in the catalogue.
        base = column_type(entry.base_oid, entry.base_modifier, catalog)
        return msgspec.structs.replace(base, name=name)
    kind = Kind.ENUM if entry.category == "e" else Kind.STRING if entry.name == "citext" else Kind.OTHER
    if kind is not Kind.ENUM:
        return ColumnType(kind, name)
    return ColumnType(kind, name, name=name, labels=tuple(entry.labels))


def _array_type(element: ColumnType) -> ColumnType:
    return ColumnType(Kind.ARRAY, f"{element.native}[]", element=element)


def _built_in_type(oid: int, built_in: _BuiltIn, modifier: int) -> ColumnType:
    if modifier < 0 or not built_in.has_modifier:
        return ColumnType(built_in.kind, built_in.name)
    # The server adds 4, the size of a length field, to the modifiers of numeric and of the character types.
    if oid == 1700:
        # Precision in the upper half; scale in the lower 11 bits, with a sign since PostgreSQL 15.
        precision, scale = (modifier - 4) >> 16, ((modifier - 4) & 0x7FF ^ 0x400) - 0x400
        return ColumnType(built_in.kind, f"numeric({precision},{scale})", precision=precision, scale=scale)
    length = modifier - 4 if oid in (1042, 1043) else modifier
    first, space, rest = built_in.name.partition(" with")  # timestamp(3) with time zone
    digits = modifier if oid in _TIMES else None
    return ColumnType(built_in.kind, f"{first}({length}){space}{rest}", scale=digits)


_CONVERT: dict[Kind, Convert] = {
    Kind.BOOL: text_values.boolean,
    Kind.INT16: int,
    Kind.INT32: int,
    Kind.INT64: int,
    Kind.UINT32: int,
    Kind.UINT64: int,
    Kind.FLOAT32: float,
    Kind.FLOAT64: float,
    Kind.DECIMAL: text_values.decimal,
    Kind.BYTES: text_values.bytea,
    Kind.DATE: text_values.date,
    Kind.TIME: text_values.time,
    Kind.TIMESTAMP: text_values.timestamp_with_time_zone,
    Kind.LOCAL_TIMESTAMP: text_values.timestamp,
    Kind.INTERVAL: text_values.interval,
}


def text_reader(type_: ColumnType) -> Convert | None:
    """Return the function from the text form of a value to its Python value; None if that is the text itself."""
    if type_.element is not None:
        # box is the one type whose arrays have another delimiter, because its own text has commas.
        return text_values.array(
            text_reader(type_.element) or str, ";" if type_.element.native == "box" else ","
        )
    return _CONVERT.get(type_.kind)
