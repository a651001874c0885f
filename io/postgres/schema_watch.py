"""What changed in the published tables since they were last looked at: tables, and columns of tables. Pure.

The log has no record of DDL, and none of the values that DDL gives to rows that exist. So the reader asks the catalogue
when it starts and every minute, and compares the answer with the one before, which is in the checkpoint. A column is
known by its number, which a rename keeps. The catalogue describes the tables as they are now, and the reader may have
read less of the log.

State: the names of the published tables and their columns, compressed, in the reader's position.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import compress, decompress

import msgspec

from penstock.io.change_streams.frontier import TableMove, moved
from penstock.io.change_streams.incremental.options import SnapshotOptions
from penstock.tables import EVERY_TABLE, TableSelection

LOOK_SECONDS = 60.0
NEWEST = "select coalesce(max(oid), 0)::int8 from pg_class"
# A table that the publication does not list belongs to it by FOR ALL TABLES, by its schema, or as a partition.
PUBLISHED = """
select relation.oid::int8, namespace.nspname, relation.relname, relation.relispartition,
       not exists (select from pg_publication_rel listed
                   join pg_publication publication on publication.oid = listed.prpubid
                   where listed.prrelid = relation.oid and publication.pubname = any(%(publications)s)),
       relation.relnatts::int4,
       (select coalesce(jsonb_agg(jsonb_build_array(attnum, attname, atthasmissing
                          or (atthasdef and attgenerated = '') or attidentity <> '') order by attnum), '[]')
        from pg_attribute where attrelid = relation.oid and attnum > 0 and not attisdropped
          and case when published.columns is null then attgenerated = '' else published.columns ? attname::text end),
       case when relation.relkind = 'p' then
         (select coalesce(jsonb_agg(relid::oid::int8 order by relid::oid), '[]')
          from pg_partition_tree(relation.oid) where isleaf) else '[]' end,
       exists (select from pg_publication where pubname = any(%(publications)s) and puballtables)
from (select schemaname, tablename, jsonb_agg(name) filter (where name is not null) as columns
      from pg_publication_tables tables
      left join lateral jsonb_array_elements_text(to_jsonb(tables) -> 'attnames') name on true
      where pubname = any(%(publications)s) group by schemaname, tablename) published
join pg_namespace namespace on namespace.nspname = published.schemaname
join pg_class relation on relation.relnamespace = namespace.oid and relation.relname = published.tablename
"""
"""The published tables, as the fields of `PublishedTable`."""


class PublishedColumn(msgspec.Struct, frozen=True, array_like=True):
    """`number`: which a rename keeps. `has_default`: DDL may have given rows a value that the log does not have."""

    number: int
    name: str
    has_default: bool = False


class PublishedTable(msgspec.Struct, frozen=True, array_like=True):
    """One table.

    Args:
        is_automatic: the publication does not list it by name.
        numbers: how many columns it has had so far.
        partitions: object ids of its partitions, if they are published under its name.
        is_for_all: a publication is FOR ALL TABLES, so a table is published from its creation on.
    """

    oid: int
    schema: str
    name: str
    is_partition: bool
    is_automatic: bool
    numbers: int
    columns: tuple[PublishedColumn, ...]
    partitions: tuple[int, ...] = ()
    is_for_all: bool = False

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


class Published(msgspec.Struct, frozen=True, array_like=True):
    """The published tables at one moment. `newest`: the highest object id then; later tables have higher ones.

    `moves`: tables that are read and joined or left before.
    """

    newest: int
    tables: tuple[PublishedTable, ...]
    moves: tuple[TableMove, ...] = ()

    @classmethod
    def of(cls, newest: int, rows: Sequence[Sequence[Any]]) -> Published:
        """Return the answers to `NEWEST` and `PUBLISHED`."""
        return cls(newest, msgspec.convert(sorted(rows, key=lambda row: row[0]), tuple[PublishedTable, ...]))

    def pack(self) -> str:
        """Return a short text, for the position."""
        return b64encode(compress(msgspec.json.encode(self))).decode("ascii")

    @classmethod
    def unpack(cls, packed: str) -> Published:
        return msgspec.json.decode(decompress(b64decode(packed)), type=cls)


class Look(NamedTuple):
    """The result of a look at the published tables.

    Args:
        published: the tables, packed.
        warnings: texts about what changed.
        joined: by ``schema.table``, the tables whose rows from before are not in the log, or lack values of a column
            there, and are to be read: the SQL condition of these rows, empty for all rows.
        left: tables whose changes and rows are not read any more.
    """

    published: str
    warnings: Sequence[str] = ()
    joined: Mapping[str, str] = {}
    left: Sequence[str] = ()


class Differences(NamedTuple):
    """Two states of the published tables compared, with the tables that are selected.

    Args:
        joined: tables that have rows from before, also under another name.
        created: tables that may have such rows: they became published in the interval in which they were created.
        attached: by table, its new partitions, whose rows from before are not in the log under the name of the table.
        newest: the highest object id before. Partitions with a higher one were created since, most of them empty.
        left: tables that are published no more, also under their old name.
        same: tables before and now.
    """

    joined: tuple[PublishedTable, ...]
    created: tuple[PublishedTable, ...]
    attached: tuple[tuple[PublishedTable, tuple[int, ...]], ...]
    newest: int
    left: tuple[PublishedTable, ...]
    same: tuple[tuple[PublishedTable, PublishedTable], ...]


def differences(before: Published, now: Published, selection: TableSelection = EVERY_TABLE) -> Differences:
    """Return what joined, what left, and what is still published, of the tables that are selected."""

    def read(tables: Sequence[PublishedTable]) -> list[PublishedTable]:
        return [table for table in tables if selection.has(table.schema, table.name)]

    known, published = (
        {table.oid: table for table in before.tables},
        {table.oid: table for table in now.tables},
    )
    joined, created, same = [], [], []
    for table in read(now.tables):
        if (old := known.get(table.oid)) is not None:
            same.append((old, table))
        elif not (table.is_automatic and table.oid > before.newest):
            joined.append(table)
        # FOR ALL TABLES publishes a table from its first row on. A table of a schema may have been filled in another
        # schema, and a partition before it was attached.
        elif not table.is_for_all:
            created.append(table)
    # A renamed table has its later changes under the new name, and lacks its older rows there.
    joined += [new for old, new in same if str(old) != str(new)]
    attached = [
        (new, more)
        for old, new in same
        if new not in joined and (more := tuple(sorted(set(new.partitions) - set(old.partitions))))
    ]
    left = [
        table
        for table in read(before.tables)
        if table.oid not in published or str(published[table.oid]) != str(table)
    ]
    return Differences(
        tuple(joined), tuple(created), tuple(attached), before.newest, tuple(left), tuple(same)
    )


def unread_rows(found: Differences) -> dict[str, str]:
    """Return the tables whose rows from before are not in the log, as in `Look.joined`."""
    rows = {str(table): "" for table in (*found.joined, *found.created)}
    for table, partitions in found.attached:
        rows[str(table)] = f"tableoid in ({', '.join(map(str, partitions))})"
    return rows


def unread_columns(found: Differences) -> dict[str, str]:
    """Return the tables with columns whose values are not in the log in rows from before, as in `Look.joined`."""
    return {str(new): "" for old, new in found.same if any(_unread(old, new))}


def _unread(old: PublishedTable, new: PublishedTable) -> Iterator[PublishedColumn]:
    """Yield the columns of a table whose values in rows from before are not in the log under their name."""
    before = {column.number: column.name for column in old.columns}
    for column in new.columns:
        if column.number in before:
            if before[column.number] != column.name:
                yield column
        # Without a default the rows that exist have NULL, as in the target. A column that existed before and is
        # published only now may have any value.
        elif column.has_default or column.number <= old.numbers:
            yield column


def texts_of(
    found: Differences,
    publication: str,
    repair: Callable[[str], str],
    *,
    reads_new_tables: bool = False,
    reads_new_columns: bool = False,
) -> list[str]:
    """Return a text for each change that the log does not show.

    Args:
        repair: says for a table, ``schema.table``, how to send its rows again.
        reads_new_tables: the rows of tables that joined are read without that.
        reads_new_columns: the rows of tables that got a column are.
    """

    def rows_of(table: PublishedTable) -> str:
        if reads_new_tables:
            return _read_now(str(table))
        return repair(str(table))

    # No warning for a partition that was created since: most of them are empty.
    attached = [table for table, partitions in found.attached if min(partitions) <= found.newest]
    renamed = {table.oid for old, table in found.same if str(old) != str(table)}
    texts = [
        f"{table} joined the {publication}: rows that it had before are not in the target. {rows_of(table)}"
        for table in found.joined
        if table.oid not in renamed
    ]
    texts += [
        f"{table} has partitions that were attached: rows that they had before are not in the target. {rows_of(table)}"
        for table in attached
    ]
    for old, new in found.same:
        if new.oid in renamed:
            texts.append(
                f"{old} is called {new} now: later changes have the new name, and rows that were written before are in "
                f"the target under the old one. {rows_of(new)}"
            )
        texts += _of_columns(old, new, _read_now if reads_new_columns else repair)
    # Old partitions are dropped as a routine.
    return texts + [
        f"{table} left the {publication}, or was dropped: its changes are not read any more, and the target keeps the "
        "rows that it has"
        for table in found.left
        if table.oid not in renamed and not table.is_partition
    ]


def _read_now(table: str) -> str:
    return f"The rows of {table} are read now, between the changes"


def _of_columns(old: PublishedTable, new: PublishedTable, repair: Callable[[str], str]) -> list[str]:
    found = []
    # By number and not by name: a column that gets another name keeps its number.
    columns, numbers = (
        {column.number: column for column in old.columns},
        {each.number for each in new.columns},
    )
    for column in _unread(old, new):
        before = columns.get(column.number)
        if before is None:
            found.append(
                f"{new} has the new column {column.name}: the log does not have its values in rows that were "
                f"written before, so the target has none. {repair(str(new))}"
            )
        else:
            found.append(
                f"{new}: the column {before.name} is called {column.name} now. In the target, rows that were written "
                f"before have no {column.name}, and {before.name} keeps its values. {repair(str(new))}; then drop "
                f"{before.name} in the target"
            )
    found += [
        f"{new}: the column {column.name} was dropped, or left the publication. The target keeps it, with old values "
        "in rows that were written before: drop it there"
        for number, column in columns.items()
        if number not in numbers
    ]
    return found


def repair_of(options: SnapshotOptions, *, several_slots: bool = False) -> Callable[[str], str]:
    """Return what says how to send the rows of a table again."""

    def repair(table: str) -> str:
        if several_slots:
            return f"To send them again, read {table} with snapshot=initial in a pipeline of its own"
        if options.signal_folder:
            return f"To send them again, run: penstock snapshot {options.signal_folder} --table {table}"
        if options.signal_table:
            return (
                f"To send them again, run: INSERT INTO {options.signal_table} VALUES ('{table}', 'execute-snapshot', "
                f'\'{{"data-collections": ["{table}"]}}\')'
            )
        if options.takes_signals:
            return f"To send them again, send a signal execute-snapshot for {table}"
        return (
            "To send them again, set signal_folder, start the pipeline again, and run: penstock snapshot JOB.YAML "
            f"--table {table}"
        )

    return repair


class SchemaWatch:
    """Looks at the published tables of one slot from time to time; shared by the readers of a process."""

    def __init__(
        self,
        ask: Callable[[], Published],
        publication: str,
        selection: TableSelection,
        repair: Callable[[str], str],
        *,
        reads_new_tables: bool = False,
        reads_new_columns: bool = False,
        clock: Callable[[], float] = time.monotonic,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`ask`: asks the server. `selection`: the tables that are read; changes of others are not told.

        `reads_new_tables`: the rows of tables that joined are to be read. `reads_new_columns`: the rows of tables that
        got a column whose values they do not have in the log.
        """
        self._ask, self._publication, self._selection, self._repair = ask, publication, selection, repair
        self._clock, self._reads_new_tables, self._reads_new_columns = (
            clock,
            reads_new_tables,
            reads_new_columns,
        )
        self._time_ns = time_ns
        self._next = -float("inf")
        self._newest = 0

    @property
    def is_due(self) -> bool:
        """Whether the last look was long ago."""
        return self._clock() >= self._next

    def look(self, known: str) -> Look:
        """Return what is published now, and what changed. `known`: of the last look, packed; "" if none.

        Raises what `ask` raises; the next look is due later all the same.
        """
        self._next = self._clock() + LOOK_SECONDS
        now, newest = self._ask(), self._newest
        self._newest = now.newest
        if not known:
            return Look(now.pack())
        before = Published.unpack(known)
        if before.tables == now.tables:  # the text stays the same, and so does the position
            return Look(known)
        now = msgspec.structs.replace(now, moves=self._moves(before, now))
        # A look without a change keeps the old text in the position, so only this object knows how new that look was.
        before = Published(max(before.newest, newest), before.tables)
        found = differences(before, now, self._selection)
        texts = texts_of(
            found,
            self._publication,
            self._repair,
            reads_new_tables=self._reads_new_tables,
            reads_new_columns=self._reads_new_columns,
        )
        joined = unread_rows(found) if self._reads_new_tables else {}
        # All rows of these tables, also where a partition was attached too.
        joined |= unread_columns(found) if self._reads_new_columns else {}
        return Look(now.pack(), texts, joined, tuple(map(str, found.left)))

    def _moves(self, before: Published, now: Published) -> tuple[TableMove, ...]:
        """Return the moves with the tables that have joined and left since. Partitions come and go as a routine."""
        old, new = (
            {
                str(each)
                for each in tables
                if not each.is_partition and self._selection.has(each.schema, each.name)
            }
            for tables in (before.tables, now.tables)
        )
        return moved(before.moves, sorted(new - old), sorted(old - new), self._time_ns())
