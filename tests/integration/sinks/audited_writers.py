"""Writers that also use TRUNCATE and DDL, and what triggers noted of all their changes.

The table `audit` has each change of a row in the order in which it was made, with the values of all columns. A
transaction or a savepoint that is rolled back leaves nothing there. Changes of one row wait for each other, and a
TRUNCATE waits for all, so for each row the order is the order of the commits.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg

from penstock.compat import UTC
from tests.integration.postgres.conftest import Database
from tests.integration.postgres.workload import CREATE, Writers

KEYS: Mapping[str, tuple[str, ...]] = {"accounts": ("id",), "notes": ("part", "id")}
SETTINGS = {"track_commit_timestamp": "on"}
"""What the server needs, so that the audit knows when a change was committed."""
_DDL_LOCK = 1
_AUDIT = """
    create function note_change() returns trigger language plpgsql as $$
    begin
        if tg_op = 'TRUNCATE' then
            insert into audit (written_by, kind, table_name) values (pg_current_xact_id(), tg_op, tg_table_name);
        else
            insert into audit (written_by, kind, table_name, old_row, new_row) values (
                pg_current_xact_id(), tg_op, tg_table_name,
                case when tg_op <> 'INSERT' then to_jsonb(old) end,
                case when tg_op <> 'DELETE' then to_jsonb(new) end);
        end if;
        return null;
    end $$"""

Key = tuple[Any, ...]
Row = dict[str, Any]


def create_tables(database: Database) -> None:
    """Create the tables with their audit and the slot; then write the first rows, so that the log has them, too."""
    tables, rows = CREATE[:2], CREATE[2:]
    database.execute(
        *tables,
        # A text that compresses well stays in its row otherwise, and is sent with every change of the key.
        "alter table notes alter body set storage external",
        "create table audit (number bigserial primary key, written_by xid8, kind text, table_name text, "
        "old_row jsonb, new_row jsonb)",
        _AUDIT,
    )
    for table in KEYS:
        database.execute(
            f"create trigger changed after insert or update or delete on {table} "
            "for each row execute function note_change()",
            f"create trigger emptied after truncate on {table} for each statement execute function note_change()",
        )
    database.publish(f"for table {', '.join(KEYS)}")
    database.execute(*rows)


class AuditedWriters(Writers):
    """Of a thousand transactions three empty the notes, and seven change their columns."""

    def _transaction(self, session: psycopg.Connection[Any], draw: random.Random) -> None:
        chance = draw.random()
        if chance < 0.003:
            session.execute("truncate notes")
        elif chance < 0.01:
            _change_columns(session, draw)
        elif chance < 0.2:
            _write_new_column(session, draw)
        else:
            super()._transaction(session, draw)
            return
        session.commit()


def _change_columns(session: psycopg.Connection[Any], draw: random.Random) -> None:
    """Add a column, make one wider, or drop one. A name is never used again, because its old values stay in targets."""
    session.execute("select pg_advisory_xact_lock(%s)", (_DDL_LOCK,))
    columns = _new_columns(session)
    narrow = [name for name, type_ in columns if type_ == "integer"]
    match draw.randrange(3):
        case 0 if narrow:
            session.execute(f"alter table notes alter {draw.choice(narrow)} type bigint")
        case 1 if len(columns) > 2:
            session.execute(f"alter table notes drop {draw.choice(columns)[0]}")
        case _:
            ((number,),) = session.execute(
                "select max(attnum) from pg_attribute where attrelid = 'notes'::regclass"
            ).fetchall()
            session.execute(f"alter table notes add added_{number} int")
            session.execute(f"update notes set added_{number} = id where id < 5")


def _write_new_column(session: psycopg.Connection[Any], draw: random.Random) -> None:
    # No other writer may drop the column between the question and the statement.
    session.execute("lock table notes in row exclusive mode")
    if columns := _new_columns(session):
        values = draw.randrange(1_000), draw.choice("xyz"), draw.randrange(40)
        session.execute(
            f"update notes set {draw.choice(columns)[0]} = %s where (part, id) = (%s, %s)", values
        )


def _new_columns(session: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    return session.execute(
        "select attname::text, format_type(atttypid, null) from pg_attribute where attrelid = 'notes'::regclass "
        "and attnum > 0 and not attisdropped and starts_with(attname::text, 'added_') order by attnum"
    ).fetchall()


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the audit. `old` and `new` have all columns that the table had; a TRUNCATE has neither."""

    kind: str
    committed_at: str
    """As `tests.support.table_readers` writes times."""
    old: Row | None
    new: Row | None


@dataclass(slots=True)
class RowVersion:
    """A row from one change to the next one. `deleted`: the next one deleted the row, or changed its key."""

    values: Row
    begun_at: str
    ended_at: str | None = None
    deleted: bool = False


@dataclass(slots=True)
class Audit:
    """The changes of one table, in their order; the key of each is the key after it, and () for a TRUNCATE."""

    table: str
    changes: list[Change]
    _open: dict[Key, RowVersion] = field(default_factory=dict)

    @classmethod
    def read(cls, dsn: str, table: str) -> Audit:
        with psycopg.connect(dsn) as session:
            rows = session.execute(
                "select kind, pg_xact_commit_timestamp(written_by::xid), old_row, new_row from audit "
                "where table_name = %s order by number",
                (table,),
            ).fetchall()
        return cls(table, [Change(kind, _text(at), old, new) for kind, at, old, new in rows])

    def by_key(self) -> dict[Key, list[Change]]:
        """Return the changes of each key."""
        found = defaultdict(list)
        for change in self.changes:
            found[self._key(change.new or change.old)].append(change)
        return dict(found)

    def versions(self) -> dict[Key, list[RowVersion]]:
        """Return all versions of each row."""
        found: dict[Key, list[RowVersion]] = defaultdict(list)
        self._open = {}
        for change in self.changes:
            self._end(change)
            if change.new is not None:
                key = self._key(change.new)
                self._open[key] = RowVersion(change.new, change.committed_at)
                found[key].append(self._open[key])
        return dict(found)

    def _end(self, change: Change) -> None:
        key = self._key(change.old)
        ended = list(self._open) if change.kind == "TRUNCATE" else [key] if key else []
        for each in ended:
            version = self._open.pop(each)
            version.ended_at = change.committed_at
            version.deleted = change.new is None or self._key(change.new) != each

    def _key(self, row: Mapping[str, Any] | None) -> Key:
        return key_of(self.table, row) if row else ()


def key_of(table: str, row: Mapping[str, Any]) -> Key:
    return tuple(row[name] for name in KEYS[table])


def source_rows(dsn: str, table: str) -> dict[Key, Row]:
    """Return the rows of the source now, with the columns that it has now."""
    with psycopg.connect(dsn) as session:
        rows = [row for (row,) in session.execute(f"select to_jsonb(t) from {table} t").fetchall()]
    return {key_of(table, row): row for row in rows}


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")
