"""Warnings about a source that can be read now, but may lose its log or refuse changes later. Pure.

Each warning says what the server has, what can happen, and the statement that changes it. `preflight` has the errors.

Source: PostgreSQL documentation, "Logical Replication" (Failover, Row identity), "pg_replication_slots" and
"Replication" settings.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.io.postgres.preflight import Rows, unidentified_tables
from penstock.io.postgres.source import ChangeStream
from penstock.setup_warning import SetupWarning

# `%%` is one percent sign: psycopg takes a single one for a parameter.
FACTS = """
select current_setting('server_version_num')::int, pg_is_in_recovery(),
       current_setting('max_slot_wal_keep_size'), current_setting('idle_replication_slot_timeout', true),
       coalesce(slot.wal_status, ''), (to_jsonb(slot) ->> 'safe_wal_size')::int8,
       coalesce((to_jsonb(slot) ->> 'failover')::boolean, false), slot.temporary,
       (select count(*) from pg_stat_replication where state is not null and application_name not like 'penstock-%%'
        and exists (select from pg_replication_slots physical
                    where physical.active_pid = pg_stat_replication.pid and physical.slot_type = 'physical')),
       coalesce(current_setting('synchronized_standby_slots', true), ''),
       (select count(*) from pg_publication_tables where pubname = any(%(publications)s))
from (select) one left join pg_replication_slots slot on slot.slot_name = %(slot)s
"""

SENT = "select total_txns from pg_stat_replication_slots where slot_name = %s"


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
    tables: int


def warnings_of(stream: ChangeStream, rows: Rows) -> list[str]:
    """Return the warnings about a source; it asks the server."""
    parameters = {"slot": stream.slot, "publications": list(stream.publications)}
    ((*facts,),) = rows(FACTS, parameters)
    return warnings_from(stream, Facts(*facts), unidentified_tables(stream, rows))


def warnings_from(stream: ChangeStream, facts: Facts, unidentified: list[str]) -> list[str]:
    """Return the warnings that follow from the facts."""
    found = [*_of_tables(stream, facts, unidentified), *_of_retention(facts), *_of_failover(stream, facts)]
    return [
        SetupWarning(text.name, f"{stream}: {text.text}")
        if isinstance(text, _Acceptable)
        else f"{stream}: {text}"
        for text in found
    ]


def start_warnings_of(stream: ChangeStream, rows: Rows) -> list[str]:
    """Return what to know before the first epoch of a new checkpoint reads from a slot that exists."""
    ((version,),) = rows("select current_setting('server_version_num')::int")
    # The statistics of slots exist from PostgreSQL 14 on.
    if version < 140_000 or not (sent := rows(SENT, (stream.slot,))) or not sent[0][0]:
        return []
    text = (
        f"{stream}: {sent[0][0]:,} transactions were read from the slot before, and this checkpoint is new. If another "
        "checkpoint reads the slot, it loses what is read here: a slot belongs to one checkpoint. Use the checkpoint "
        "folder of that job, or another slot"
    )
    return [SetupWarning("slot_was_read", text)]


class _Acceptable(NamedTuple):
    name: str
    text: str


def _of_tables(stream: ChangeStream, facts: Facts, unidentified: list[str]) -> list[str | _Acceptable]:
    found: list[str | _Acceptable] = []
    if not facts.tables:
        found.append(
            "the publication has no table, so no change will come. Run: ALTER PUBLICATION "
            f"{stream.publications[0]} ADD TABLE …"
        )
    if unidentified:
        table = unidentified[0]
        text = (
            f"{', '.join(unidentified)}: no replica identity, so the server refuses UPDATE and DELETE of their rows. "
            f"Add a primary key, or run: ALTER TABLE {table} REPLICA IDENTITY FULL"
        )
        found.append(_Acceptable("replica_identity", text))
    return found


def _of_retention(facts: Facts) -> list[str | _Acceptable]:
    found: list[str | _Acceptable] = []
    if facts.kept_log == "-1" and not facts.is_standby:
        text = (
            "max_slot_wal_keep_size is -1: while the pipeline is stopped, the server keeps its log without limit and "
            "the disk can become full. Set a limit that covers the longest outage, such as: ALTER SYSTEM SET "
            "max_slot_wal_keep_size = '50GB'"
        )
        found.append(_Acceptable("max_slot_wal_keep_size", text))
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
        text = (
            f"idle_replication_slot_timeout is {facts.idle_timeout}: the server invalidates the slot of a pipeline "
            "that is stopped for longer, and its changes are lost. Run: ALTER SYSTEM SET "
            "idle_replication_slot_timeout = 0, or never stop the pipeline for so long"
        )
        found.append(_Acceptable("idle_replication_slot_timeout", text))
    return found


def _of_failover(stream: ChangeStream, facts: Facts) -> list[_Acceptable]:
    if facts.is_standby:
        return []
    has_standbys = facts.standbys > 0 or facts.synchronized_slots != ""
    # Slots are copied to standbys from PostgreSQL 17 on.
    if facts.version < 170_000 or not has_standbys:
        return []
    if not facts.failover:
        text = (
            "the server has a standby, and the slot is not copied to it: after a failover the pipeline needs a new "
            "snapshot. Create the slot with failover (pg_create_logical_replication_slot"
            f"('{stream.slot}', 'pgoutput', failover => true)) and set sync_replication_slots = on on the standby"
        )
        return [_Acceptable("failover", text)]
    if not facts.synchronized_slots:
        text = (
            "the slot is a failover slot, but synchronized_standby_slots is empty: the pipeline may read changes that "
            "the standby does not have yet, and after a failover they are in the target only. Set "
            "synchronized_standby_slots to the physical slots of the standbys"
        )
        return [_Acceptable("synchronized_standby_slots", text)]
    return []
