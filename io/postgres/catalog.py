"""The questions to PostgreSQL's catalogue, and a table as the log and the catalogue describe it together. Pure.

The catalogue describes the table as it is now, the log as it was at the time of the change. Columns, types and identity
come from the log; only the key and its order, the constraints NOT NULL and the defaults come from the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.io.postgres import messages as log
from penstock.io.postgres.column_types import TypeCatalog, column_type
from penstock.io.postgres.record import Table, TableColumn

KEY_INDEX = """
index.indrelid = relation.oid and case when relation.relreplident = 'i' then index.indisreplident
else index.indisprimary or (
    index.indisunique and index.indisvalid and index.indimmediate and index.indpred is null and index.indexprs is null
    and not exists (select from pg_attribute part where part.attrelid = relation.oid and not part.attnotnull
                    and part.attnum = any((index.indkey::int2[])[0:index.indnkeyatts - 1]))) end
"""
"""Whether an `index` identifies the rows of a `relation`: the index of the replica identity, else the primary key, or
a unique index that holds no NULL. Columns that an index only includes are no part of a key."""

RELATION = f"""
with relation as (select oid, relreplident from pg_class where oid = %s),
key as (
    select (index.indkey::int2[])[0:index.indnkeyatts - 1] as columns
    from relation join pg_index index on {KEY_INDEX} join pg_class named on named.oid = index.indexrelid
    order by index.indisprimary desc, named.relname limit 1
)
select attribute.attname,
       attribute.attnotnull or exists (select from pg_type where oid = attribute.atttypid and typnotnull),
       (select position from unnest(key.columns) with ordinality as keys (number, position)
        where keys.number = attribute.attnum),
       (select pg_get_expr(adbin, adrelid) from pg_attrdef
        where adrelid = attribute.attrelid and adnum = attribute.attnum and attribute.attgenerated = ''),
       attribute.attnum::int4
from relation
join pg_attribute attribute on attribute.attrelid = relation.oid and attribute.attnum > 0 and not attribute.attisdropped
left join key on true
"""
"""Column, whether it is NOT NULL, its position (from 1) in the key, its default, its number.

A table with several unique indexes has the first one by name, as in Debezium.
"""

FIRST_OID_OF_USERS = 16384
"""The server gives ids from this one on to objects that are not part of PostgreSQL itself."""

TYPES = f"""
select type.oid::int8, namespace.nspname, type.typname, type.typtype::text,
       case when type.typcategory = 'A' then type.typelem::int8 else 0 end, type.typbasetype::int8, type.typtypmod,
       array(select enumlabel::text from pg_enum where enumtypid = type.oid order by enumsortorder)
from pg_type type join pg_namespace namespace on namespace.oid = type.typnamespace
where type.oid >= {FIRST_OID_OF_USERS}
"""
"""The types that users and extensions defined, as the fields of `CatalogType`."""

_IDENTITIES = {"d": "DEFAULT", "n": "NOTHING", "f": "FULL", "i": "INDEX"}


def describe(relation: log.Relation, columns: Sequence[tuple[Any, ...]], types: TypeCatalog) -> Table:
    """Return the table. `columns` are the rows of `RELATION`, empty if the table was dropped since.

    Recorded rows may lack the number.
    """
    # By name, because the log has no numbers of columns. A column that was renamed or dropped since is not found.
    known = {name: (not_null, position, default) for name, not_null, position, default, *_ in columns}
    numbers = _numbers(relation, {name: number for name, _, _, _, *rest in columns for number in rest})
    # Under FULL the log marks every column as a part of the identity, which says nothing about the key.
    full = relation.replica_identity == "f"
    keys = {name: position for name, (_, position, _) in known.items() if position is not None}
    if not keys.keys() <= {column.name for column in relation.columns}:
        # A part of the key is not published, and the rest of it does not identify a row; or a column was renamed since.
        keys = {}
    if not keys and not full:
        named = [column.name for column in relation.columns if column.is_key]
        keys = {name: number for number, name in enumerate(named, 1)}
    return Table(
        relation.oid,
        relation.schema,
        relation.table,
        _IDENTITIES.get(relation.replica_identity, relation.replica_identity),
        tuple(
            TableColumn(
                column.name,
                column_type(column.type_oid, column.modifier, types),
                column.type_oid,
                column.is_key,
                keys.get(column.name),
                not known[column.name][0] if column.name in known else None,
                known[column.name][2] if column.name in known else None,
                numbers.get(column.name),
            )
            for column in relation.columns
        ),
    )


def _numbers(relation: log.Relation, numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of the columns by name; none if the catalogue shows that names were changed since.

    The log has columns in the order of their numbers. It does not show a column that was dropped since, whose name
    another new column has by now.
    """
    found = [numbers.get(column.name, 0) for column in relation.columns]
    if 0 in found or found != sorted(found):
        return {}
    return {column.name: number for column, number in zip(relation.columns, found, strict=True)}
