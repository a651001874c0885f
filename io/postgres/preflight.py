"""The checks before a read: the server decodes its log, the slot and the publications exist and can be read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.errors import ChangeStreamError, PositionLostError, SetupError, SeveralProblemsError
from penstock.io.postgres.catalog import KEY_INDEX
from penstock.io.postgres.record import parse_lsn
from penstock.io.postgres.source import ChangeStream
from penstock.tables import EVERY_TABLE, SourceTable, TableSelection, Unmatched, unmatched_selection

Rows = Callable[..., list[tuple[Any, ...]]]

SERVER = """
select current_setting('server_version_num')::int, current_setting('wal_level'), pg_is_in_recovery(),
       (select rolreplication or rolsuper from pg_roles where rolname = current_user), current_user
"""
ROLE = "select current_user"
PUBLICATIONS = "select pubname from pg_publication"
# `to_jsonb(row) ->> 'column'` is NULL if the server is too old to have the column. The left join returns a row also if
# there is no slot.
SLOT = """
select slot.plugin, slot.database, coalesce(slot.confirmed_flush_lsn, '0/0')::text, coalesce(slot.wal_status, ''),
       coalesce((to_jsonb(slot) ->> 'two_phase')::boolean, false), system.system_identifier::text, current_database(),
       slot.temporary, coalesce(to_jsonb(slot) ->> 'invalidation_reason', '')
from pg_control_system() system left join pg_replication_slots slot on slot.slot_name = %s
"""
SLOT_READER = """
select slot.active_pid, coalesce(reader.application_name, '') from pg_replication_slots slot
left join pg_stat_activity reader on reader.pid = slot.active_pid where slot.slot_name = %s
"""
CREATE_SLOT = "select lsn::text from pg_create_logical_replication_slot(%s, 'pgoutput')"
DROP_SLOT = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s"
UNIDENTIFIED = """
select schemaname || '.' || tablename from pg_publication_tables published
join pg_namespace namespace on namespace.nspname = schemaname
join pg_class relation on relation.relnamespace = namespace.oid and relation.relname = tablename
join pg_publication publication on publication.pubname = published.pubname
where published.pubname = any(%s) and (publication.pubupdate or publication.pubdelete)
  and (relation.relreplident = 'n' or relation.relreplident = 'd' and not exists (
    select from pg_index where indrelid = relation.oid and indisprimary))
"""
"""Published tables without a replica identity: the server refuses to update and delete their rows."""

# Tables are found by the columns of the catalogue, and not by `format(…)::regclass`: the server may compute a cast for
# tables outside of the publication, and it fails in schemas that the role may not use, such as pg_toast.
IDENTITIES = """
select distinct relation.relreplident::text from pg_publication_tables published
join pg_namespace namespace on namespace.nspname = schemaname
join pg_class relation on relation.relnamespace = namespace.oid and relation.relname = tablename
where published.pubname = any(%s)
"""

UNREADABLE = """
select distinct schemaname || '.' || tablename from pg_publication_tables
join pg_namespace namespace on namespace.nspname = schemaname
join pg_class relation on relation.relnamespace = namespace.oid and relation.relname = tablename
where pubname = any(%s) and not has_table_privilege(relation.oid, 'select')
"""
"""Published tables that the role may not select from."""

# Column lists exist from PostgreSQL 15 on; `to_jsonb` gives NULL for a column that the view does not have.
SOURCE_TABLES = f"""
select published.schemaname, published.tablename,
       coalesce((select array_agg(value) from jsonb_array_elements_text(to_jsonb(published) -> 'attnames')),
                array(select attname::text from pg_attribute where attrelid = relation.oid and attnum > 0
                      and not attisdropped and attgenerated = '' order by attnum)),
       exists (select from pg_index index where {KEY_INDEX}),
       array(select attname::text from pg_attribute join pg_type type on type.oid = atttypid
             where attrelid = relation.oid and attnum > 0 and not attisdropped
             and 'numeric'::regtype in (type.oid, type.typbasetype, type.typelem) order by attnum)
from pg_publication_tables published
join pg_namespace namespace on namespace.nspname = published.schemaname
join pg_class relation on relation.relnamespace = namespace.oid and relation.relname = published.tablename
where published.pubname = any(%s)
"""
"""The published tables with their published columns, whether the changes of each have a key, and its columns of
numeric."""

SIGNAL_TABLE = """
select array(select attname::text from pg_attribute where attrelid = relation.oid and attnum > 0 and not attisdropped),
       has_table_privilege(relation.oid, 'select') or exists (
         select from pg_publication_tables
         where schemaname = nspname and tablename = relname and pubname = any(%(names)s))
from pg_class relation join pg_namespace namespace on namespace.oid = relation.relnamespace
where nspname = %(schema)s and relname = %(table)s
"""
"""The columns of the signal table, and whether its signals can be read: with a query, or from the log."""

SHARDED = """
select distinct published.pubname, coalesce(leaf.relid, root.oid)::regclass::text,
       to_jsonb(published) ->> 'rowfilter' is not null
from pg_publication_tables published
join pg_namespace namespace on namespace.nspname = schemaname
join pg_class root on root.relnamespace = namespace.oid and root.relname = tablename
left join lateral (select relid from pg_partition_tree(root.oid) where isleaf) leaf on true
where published.pubname = any(%s)
"""
"""Tables of publications, partitions instead of their parents, and whether the publication has a filter of rows."""

SYNCED = """
select coalesce((to_jsonb(slot) ->> 'synced')::boolean, false) from pg_replication_slots slot where slot_name = %s
"""
"""Whether a standby keeps the slot as a copy of its primary's."""

_OLDEST = 140_000
_TWO_PHASE = 150_000
_PARALLEL = _STANDBY = 160_000


class Slot(NamedTuple):
    """`confirmed_lsn`: the server has removed, or may remove, changes before it.

    `two_phase`: it sends transactions of a two-phase commit when they are prepared.
    """

    confirmed_lsn: int
    system: str
    two_phase: bool = False


def check_source(
    stream: ChangeStream,
    rows: Rows,
    *,
    create_slot: bool,
    renew_slot: bool = False,
    reads_tables: bool = False,
    streaming: str = "off",
) -> Slot | None:
    """Return the slot, after all checks; None if the pipeline will create it. The server is not changed.

    Args:
        create_slot: a slot that does not exist is no problem.
        renew_slot: a slot that cannot be read any more is no problem.
        reads_tables: snapshots may be read.
        streaming: see `ReadFromPostgresChangeStream`.

    Raises:
        SetupError: the source cannot be read; the message names the fix. With several problems it is a
            `SeveralProblemsError`, which has all of them.
        PositionLostError: the server has removed log that the slot needs.
    """
    version, standby, user, problems = _server_problems(stream, rows, streaming)
    # An older server does not know the tables of the catalogue that the next questions are about.
    if version < _OLDEST:
        raise problems[0]
    problems += _publication_problems(stream, [name for (name,) in rows(PUBLICATIONS)])
    if reads_tables:
        unreadable = sorted(name for (name,) in rows(UNREADABLE, (list(stream.publications),)))
        problems += _rights_problems(stream, unreadable, user)
    if standby and any(synced for (synced,) in rows(SYNCED, (stream.slot,))):
        problems.append(
            SetupError(
                f"{stream}: the slot is a copy of the slot of the primary, which only a failover makes readable. Read "
                "from the primary, or from another slot that was created on the standby"
            )
        )
    state = rows(SLOT, (stream.slot,))
    slot = None
    try:
        slot = check_slot(stream, state)
        if slot.two_phase and version < _TWO_PHASE:
            raise SetupError(
                f"{stream}: the slot was created with two_phase, which needs PostgreSQL 15 here. Create one without: "
                "transactions of a two-phase commit then come after their commit"
            )
    except PositionLostError as lost:
        # `create_slot` makes a slot that is missing. To replace one whose log is lost would hide the loss.
        if not renew_slot and not (create_slot and state[0][0] is None):
            problems.append(lost)
    except SetupError as wrong:
        problems.append(wrong)
    if problems:
        raise SeveralProblemsError.of(problems, stream.database)
    return slot


def prepared_slot(stream: ChangeStream, rows: Rows, slot: Slot | None, *, renew_slot: bool = False) -> Slot:
    """Return the slot of a checked source; it is created if it does not exist. `slot`: what `check_source` returned.

    `renew_slot`: a slot that cannot be read any more is created again.
    """
    if slot is not None:
        return slot
    if renew_slot:
        return renewed_slot(stream, rows)
    state = rows(SLOT, (stream.slot,))
    # It exists if the connection of an earlier try broke after the server had made it.
    if state[0][0] is None:
        rows(CREATE_SLOT, (stream.slot,))
        state = rows(SLOT, (stream.slot,))
    return check_slot(stream, state)


def source_tables(stream: ChangeStream, rows: Rows) -> list[SourceTable]:
    """Return the tables of the publications of all slots."""
    names = [name for shard in stream.shards for name in shard.publications]
    merged: dict[tuple[str, str], SourceTable] = {}
    for schema, name, columns, has_key, numbers in rows(SOURCE_TABLES, (names,)):
        before = merged.get((schema, name))
        # Two publications may publish different columns of a table; the server sends all of them.
        every = dict.fromkeys((*(before.columns if before else ()), *columns))
        merged[schema, name] = SourceTable(
            schema, name, tuple(every), has_key, tuple(each for each in numbers if each in every)
        )
    return [merged[name] for name in sorted(merged)]


def check_signal_table(stream: ChangeStream, rows: Rows, name: str) -> None:
    """Check that signals can be read from the table ``schema.table``.

    Raises:
        SetupError: it does not exist, lacks a column, or the role may not read it.
    """
    schema, _, table = name.partition(".")
    found = rows(SIGNAL_TABLE, {"schema": schema, "table": table, "names": list(stream.publications)})
    ((user,),) = rows(ROLE)
    sql = _quoted_table(name)
    grant = f"GRANT SELECT ON {sql} TO {_quoted(user)}"
    if not found:
        raise SetupError(
            f"{stream}: there is no table {name}, which signal_table names",
            run=[f"CREATE TABLE {sql} (id text, type text, data text)", grant],
        )
    ((columns, is_readable),) = found
    if missing := [column for column in ("id", "type", "data") if column not in columns]:
        raise SetupError(
            f"{stream}: the signal table {name} has no column {', '.join(missing)}",
            run=[f"ALTER TABLE {sql} ADD COLUMN {column} text" for column in missing],
        )
    if not is_readable:
        raise SetupError(
            f"{stream}: the role may not read the signal table {name}",
            run=[f"GRANT SELECT ON {sql} TO PUBLIC"],
        )


def unmatched_tables(stream: ChangeStream, rows: Rows, selection: TableSelection) -> Unmatched:
    """Return texts about the patterns that match no published table, and about a selection of no table.

    None about a publication without tables, or one that does not exist: another check says so.
    """
    tables = source_tables(stream, rows) if selection != EVERY_TABLE else ()
    return unmatched_selection(selection, tables, stream.short_name)


def check_shards(stream: ChangeStream, rows: Rows) -> None:
    """Check that no table is in the publications of two slots: its changes would come twice.

    Two publications that filter the rows of a table may share it. Whether their filters exclude each other is known
    only to the user.

    Raises:
        SetupError: a table belongs to two slots.
    """
    if not stream.further:
        return
    slots = {name: shard.slot for shard in stream.shards for name in shard.publications}
    found: dict[str, tuple[str, bool]] = {}
    for publication, table, filters in sorted(rows(SHARDED, (list(slots),))):
        slot, all_filter = found.setdefault(table, (slots[publication], filters))
        if slot != slots[publication] and not (filters and all_filter):
            raise SetupError(
                f"{stream}: the table {table} is in publications of the slots {slot} and {slots[publication]}, so its "
                f"changes would come twice. Run: ALTER PUBLICATION {publication} DROP TABLE {table}; or give both "
                "publications row filters that exclude each other"
            )
        # Remembered, because one publication without a filter has every row of the others.
        found[table] = slot, all_filter and filters


def renewed_slot(stream: ChangeStream, rows: Rows) -> Slot:
    """Return the slot; one that cannot be read any more, or does not exist, is created again."""
    try:
        return check_slot(stream, rows(SLOT, (stream.slot,)))
    except PositionLostError:
        # A crash after this line leaves no slot, and the next call creates it.
        rows(DROP_SLOT, (stream.slot,))
        rows(CREATE_SLOT, (stream.slot,))
    return check_slot(stream, rows(SLOT, (stream.slot,)))


def unidentified_tables(stream: ChangeStream, rows: Rows) -> list[str]:
    """Return the published tables whose rows the server refuses to update and delete."""
    return sorted(name for (name,) in rows(UNIDENTIFIED, (list(stream.publications),)))


def _server_problems(
    stream: ChangeStream, rows: Rows, streaming: str
) -> tuple[int, bool, str, list[ChangeStreamError]]:
    """Return the version of the server, whether it is a standby, the role, and what keeps it from being read."""
    ((version, wal_level, standby, may_replicate, user),) = rows(SERVER)
    problems: list[ChangeStreamError] = []
    if version < _OLDEST:
        problems.append(
            SetupError(
                f"{stream}: the server has version {version // 10_000}. Upgrade it to version 14 or later"
            )
        )
    if wal_level != "logical":
        problems.append(
            SetupError(
                f"{stream}: the server has wal_level = {wal_level}. Set wal_level = logical and restart it"
                + (" and its primary" if standby else ""),
            )
        )
    if standby and version < _STANDBY:
        problems.append(
            SetupError(f"{stream}: a standby can decode its log from version 16 on. Read from the primary")
        )
    if streaming == "parallel" and version < _PARALLEL:
        problems.append(
            SetupError(
                f"{stream}: streaming=parallel needs PostgreSQL 16, and the server has version {version // 10_000}: "
                "set streaming=on"
            )
        )
    if not may_replicate:
        problems.append(
            SetupError(
                f"{stream}: the role {user} may not read the log",
                run=[f"ALTER ROLE {_quoted(user)} REPLICATION"],
            )
        )
    return version, standby, user, problems


# The catalogue is readable for every role, so only `has_table_privilege` shows that the rows are not.
def _rights_problems(stream: ChangeStream, unreadable: Sequence[str], user: str) -> Iterator[SetupError]:
    if unreadable:
        names = ", ".join(unreadable)
        yield SetupError(
            f"{stream}: the role {user} may not read {names}, and snapshots read rows of tables",
            run=[f"GRANT SELECT ON {', '.join(map(_quoted_table, unreadable))} TO {_quoted(user)}"],
        )


def _publication_problems(stream: ChangeStream, names: Sequence[str]) -> Iterator[SetupError]:
    for missing in stream.publications:
        if missing not in names:
            known = ", ".join(sorted(names)) or "none"
            yield SetupError(
                f"{stream}: there is no publication {missing!r} (there are: {known}). Create it before the slot, for "
                "all tables or FOR TABLE with their names",
                run=[f"CREATE PUBLICATION {_quoted(missing)} FOR ALL TABLES"],
            )


def _quoted(name: str) -> str:
    """Return a name as SQL has it, quoted only if it must be."""
    plain = (
        name.isascii()
        and name.replace("_", "a").isalnum()
        and name == name.lower()
        and not name[:1].isdigit()
    )
    return name if plain else '"' + name.replace('"', '""') + '"'


def _quoted_table(name: str) -> str:
    schema, _, table = name.partition(".")
    return f"{_quoted(schema)}.{_quoted(table)}"


def free_slot_problems(stream: ChangeStream, rows: Rows, reader_name: str) -> list[ChangeStreamError]:
    """Return why a preview cannot read the slot: it does not exist, or another reader has it."""
    found = rows(SLOT_READER, (stream.slot,))
    if not found:
        return [
            SetupError(
                f"{stream}: the slot does not exist, and a preview creates none. Create it",
                run=[f"SELECT pg_create_logical_replication_slot('{stream.slot}', 'pgoutput')"],
            )
        ]
    ((pid, application),) = found
    # A reader of this program is ended when the slot is needed (`Client.take_slot`).
    if pid is None or application == reader_name:
        return []
    return [
        SetupError(
            f"{stream}: the process {pid} of the server sends the slot to another reader, and a slot has one. Stop the "
            "pipeline that reads it, or name another slot"
        )
    ]


def check_slot(stream: ChangeStream, rows: Sequence[tuple[Any, ...]]) -> Slot:
    """Return the slot that the query `SLOT` describes.

    Raises:
        SetupError: it is no slot for this source.
        PositionLostError: it does not exist, or the server has removed log that it needs.
    """
    ((plugin, database, confirmed, wal_status, two_phase, system, connected, temporary, invalid),) = rows
    if plugin is None:
        raise PositionLostError(
            f"{stream}: the slot does not exist. A pipeline that resumes has lost the changes since the "
            "slot was dropped: take a new snapshot and start with a new checkpoint folder. A new pipeline creates the "
            "slot with create_slot=True, or you create it",
            run=[f"SELECT pg_create_logical_replication_slot('{stream.slot}', 'pgoutput')"],
        )
    if plugin != "pgoutput":
        raise SetupError(f"{stream}: the slot has the output plugin {plugin}. Name a slot with pgoutput")
    if database != connected:
        raise SetupError(
            f"{stream}: the slot belongs to the database {database}, and the dsn names {connected}. Name {database} in "
            f"the dsn, or another slot"
        )
    if temporary:
        raise SetupError(
            f"{stream}: the slot is temporary and ends with its connection. Create a permanent one"
        )
    if wal_status == "lost" or invalid:
        raise PositionLostError(
            f"{stream}: the server has invalidated the slot ({invalid or 'wal_status lost'}), so changes "
            f"are lost. Take a "
            "new snapshot of the tables, drop the slot, start with a new slot and a new checkpoint folder, and raise "
            "max_slot_wal_keep_size"
        )
    return Slot(parse_lsn(confirmed), system, two_phase)
