"""Warnings about a source that can be read now, but may lose its log or refuse changes later. Pure.

Each warning says what the server has, what can happen, and the statement that changes it. `preflight` has the errors.

Source: PostgreSQL documentation, "Logical Replication" (Failover, Row identity), "pg_replication_slots" and
"Replication" settings.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.io.postgres.preflight import Rows, unidentified_tables
from penstock.io.postgres.source import ChangeStream

FACTS = """
select current_setting('server_version_num')::int, pg_is_in_recovery(),
       current_setting('max_slot_wal_keep_size'), current_setting('idle_replication_slot_timeout', true),
       coalesce(slot.wal_status, ''), (to_jsonb(slot) ->> 'safe_wal_size')::int8,
       coalesce((to_jsonb(slot) ->> 'failover')::boolean, false), slot.temporary,
       (select count(*) from pg_stat_replication where state is not null and application_name not like 'penstock-%%'
        and exists (select from pg_replication_slots physical
                    where physical.active_pid = pg_stat_replication.pid and physical.slot_type = 'physical')),
       coalesce(current_setting('synchronized_standby_slots', true), ''),
       coalesce(current_setting('sync_replication_slots', true), ''),
       (select count(*) from pg_publication_tables where pubname = any(%(publications)s))
from (select) one left join pg_replication_slots slot on slot.slot_name = %(slot)s
"""


class Facts(NamedTuple):
    """A row of `FACTS`. Settings that the server's version does not have are None or empty."""

    version: int
    is_standby: bool
    kept_log: str
    idle_timeout: str | None
    wal_status: str
    safe_bytes: int | None
    failover: bool
    temporary: bool | None
    standbys: int
    synchronized_slots: str
    sync_slots: str
    tables: int


def warnings_of(stream: ChangeStream, rows: Rows) -> list[str]:
    """Return the warnings about a source; it asks the server."""
    parameters = {"slot": stream.slot, "publications": list(stream.publications)}
    ((*facts,),) = rows(FACTS, parameters)
    return warnings_from(stream, Facts(*facts), unidentified_tables(stream, rows))


def warnings_from(stream: ChangeStream, facts: Facts, unidentified: list[str]) -> list[str]:
    """Return the warnings that follow from the facts."""
    found = [*_of_tables(stream, facts, unidentified), *_of_retention(facts), *_of_failover(stream, facts)]
    return [f"{stream}: {text}" for text in found]


def _of_tables(stream: ChangeStream, facts: Facts, unidentified: list[str]) -> list[str]:
    found = []
    if not facts.tables:
        found.append(
            "the publication has no table, so no change will come. Run: ALTER PUBLICATION "
            f"{stream.publications[0]} ADD TABLE …"
        )
    if unidentified:
        table = unidentified[0]
        found.append(
            f"{', '.join(unidentified)}: no replica identity, so the server refuses UPDATE and DELETE of their rows. "
            f"Add a primary key, or run: ALTER TABLE {table} REPLICA IDENTITY FULL"
        )
    return found


def _of_retention(facts: Facts) -> list[str]:
    found = []
    if facts.kept_log == "-1" and not facts.is_standby:
        found.append(
            "max_slot_wal_keep_size is -1: while the pipeline is stopped, the server keeps its log without limit and "
            "the disk can become full. Set a limit that covers the longest outage, such as: ALTER SYSTEM SET "
            "max_slot_wal_keep_size = '50GB'"
        )
    if facts.wal_status in ("extended", "unreserved"):
        room = (
            ""
            if facts.safe_bytes is None
            else f" {max(0, facts.safe_bytes) >> 20} MiB of log remain until then."
        )
        what = "more log than max_wal_size" if facts.wal_status == "extended" else "log that is removed soon"
        found.append(
            f"the slot has wal_status {facts.wal_status}: it needs {what}.{room} The server invalidates the slot when "
            "the limit max_slot_wal_keep_size is passed. Let the pipeline catch up, or raise the limit"
        )
    if facts.idle_timeout not in (None, "", "0"):
        found.append(
            f"idle_replication_slot_timeout is {facts.idle_timeout}: the server invalidates the slot of a pipeline "
            "that is stopped for longer, and its changes are lost. Run: ALTER SYSTEM SET "
            "idle_replication_slot_timeout = 0, or never stop the pipeline for so long"
        )
    return found


def _of_failover(stream: ChangeStream, facts: Facts) -> list[str]:
    if facts.is_standby:
        return []
    has_standbys = facts.standbys > 0 or facts.synchronized_slots != ""
    if facts.version < 170_000 or not has_standbys:
        return []
    if not facts.failover:
        return [
            "the server has a standby, and the slot is not copied to it: after a failover the pipeline needs a new "
            "snapshot. Create the slot with failover (pg_create_logical_replication_slot"
            f"('{stream.slot}', 'pgoutput', failover => true)) and set sync_replication_slots = on on the standby"
        ]
    if not facts.synchronized_slots:
        return [
            "the slot is a failover slot, but synchronized_standby_slots is empty: the pipeline may read changes that "
            "the standby does not have yet, and after a failover they are in the target only. Set "
            "synchronized_standby_slots to the physical slots of the standbys"
        ]
    return []
