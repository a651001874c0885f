"""The checks before a read: the server decodes its log, the slot and the publications exist and can be read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.errors import PositionLostError, SetupError
from penstock.io.postgres.record import parse_lsn
from penstock.io.postgres.source import ChangeStream

Rows = Callable[..., list[tuple[Any, ...]]]

SERVER = """
select current_setting('server_version_num')::int, current_setting('wal_level'), pg_is_in_recovery(),
       (select rolreplication or rolsuper from pg_roles where rolname = current_user), current_user
"""
PUBLICATIONS = "select pubname from pg_publication"
# `to_jsonb(row) ->> 'column'` is NULL if the server is too old to have the column. The left join returns a row also if
# there is no slot.
SLOT = """
select slot.plugin, slot.database, coalesce(slot.confirmed_flush_lsn, '0/0')::text, coalesce(slot.wal_status, ''),
       coalesce((to_jsonb(slot) ->> 'two_phase')::boolean, false), system.system_identifier::text, current_database(),
       slot.temporary, coalesce(to_jsonb(slot) ->> 'invalidation_reason', '')
from pg_control_system() system left join pg_replication_slots slot on slot.slot_name = %s
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
select schemaname || '.' || tablename from pg_publication_tables
join pg_namespace namespace on namespace.nspname = schemaname
join pg_class relation on relation.relnamespace = namespace.oid and relation.relname = tablename
where pubname = any(%s) and not has_table_privilege(relation.oid, 'select')
"""
"""Published tables that the role may not select from."""

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
_PARALLEL = 160_000


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
) -> Slot:
    """Return the slot, after all checks; it is created if it does not exist and `create_slot` is set.

    `renew_slot`: a slot that does not exist, or cannot be read any more, is created again. `reads_tables`: snapshots
    may be read. `streaming`: see `ReadFromPostgresChangeStream`.

    Raises:
        SetupError: the source cannot be read; the message names the fix.
        PositionLostError: the server has removed log that the slot needs.
    """
    version, standby = _check_server(stream, rows)
    if streaming == "parallel" and version < _PARALLEL:
        raise SetupError(
            f"{stream}: streaming=parallel needs PostgreSQL 16, and the server has version {version // 10_000}: set "
            "streaming=on"
        )
    _check_publications(stream, [name for (name,) in rows(PUBLICATIONS)])
    if reads_tables:
        _check_rights(stream, [name for (name,) in rows(UNREADABLE, (list(stream.publications),))])
    if standby and any(synced for (synced,) in rows(SYNCED, (stream.slot,))):
        raise SetupError(
            f"{stream}: the slot is a copy of the slot of the primary, which only a failover makes readable. Read from "
            "the primary, or from another slot that was created on the standby"
        )
    if renew_slot:
        return renewed_slot(stream, rows)
    state = rows(SLOT, (stream.slot,))
    if create_slot and state[0][0] is None:
        rows(CREATE_SLOT, (stream.slot,))
        state = rows(SLOT, (stream.slot,))
    slot = check_slot(stream, state)
    if slot.two_phase and version < _TWO_PHASE:
        raise SetupError(
            f"{stream}: the slot was created with two_phase, which needs PostgreSQL 15 here. Create one without: "
            "transactions of a two-phase commit then come after their commit"
        )
    return slot


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
        found[table] = slot, all_filter and filters


def renewed_slot(stream: ChangeStream, rows: Rows) -> Slot:
    """Return the slot; one that cannot be read any more, or does not exist, is created again."""
    try:
        return check_slot(stream, rows(SLOT, (stream.slot,)))
    except PositionLostError:
        rows(DROP_SLOT, (stream.slot,))
        rows(CREATE_SLOT, (stream.slot,))
    return check_slot(stream, rows(SLOT, (stream.slot,)))


def unidentified_tables(stream: ChangeStream, rows: Rows) -> list[str]:
    """Return the published tables whose rows the server refuses to update and delete."""
    return sorted(name for (name,) in rows(UNIDENTIFIED, (list(stream.publications),)))


def _check_server(stream: ChangeStream, rows: Rows) -> tuple[int, bool]:
    """Return the version of the server, and whether it is a standby."""
    ((version, wal_level, standby, may_replicate, user),) = rows(SERVER)
    if version < _OLDEST:
        raise SetupError(
            f"{stream}: the server has version {version // 10_000}. Upgrade it to version 14 or later"
        )
    if wal_level != "logical":
        raise SetupError(
            f"{stream}: the server has wal_level = {wal_level}. Set wal_level = logical and restart it"
            + (" and its primary" if standby else "")
        )
    if standby and version < 160_000:
        raise SetupError(f"{stream}: a standby can decode its log from version 16 on. Read from the primary")
    if not may_replicate:
        raise SetupError(
            f"{stream}: the role {user} may not read the log. Run: ALTER ROLE {user} REPLICATION"
        )
    return version, standby


# The catalogue is readable for every role, so only `has_table_privilege` shows that the rows are not.
def _check_rights(stream: ChangeStream, unreadable: Sequence[str]) -> None:
    if unreadable:
        raise SetupError(
            f"{stream}: the role may not read {', '.join(sorted(unreadable))}, and snapshots read rows of tables. Run: "
            f"GRANT SELECT ON {unreadable[0]} TO …"
        )


def _check_publications(stream: ChangeStream, names: Sequence[str]) -> None:
    missing = [name for name in stream.publications if name not in names]
    if missing:
        known = ", ".join(sorted(names)) or "none"
        raise SetupError(
            f"{stream}: there is no publication {missing[0]!r} (there are: {known}). Create it before the slot: CREATE "
            f"PUBLICATION {missing[0]} FOR TABLE …"
        )


def check_slot(stream: ChangeStream, rows: Sequence[tuple[Any, ...]]) -> Slot:
    """Return the slot that the query `SLOT` describes.

    Raises:
        SetupError: it is no slot for this source.
        PositionLostError: it does not exist, or the server has removed log that it needs.
    """
    ((plugin, database, confirmed, wal_status, two_phase, system, connected, temporary, invalid),) = rows
    if plugin is None:
        raise PositionLostError(
            f"{stream}: the slot does not exist. A new pipeline must create it: pass create_slot=True, or run "
            f"SELECT pg_create_logical_replication_slot('{stream.slot}', 'pgoutput'). A pipeline that "
            f"resumes has lost the "
            "changes since the slot was dropped: take a new snapshot and start with a new checkpoint folder"
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
