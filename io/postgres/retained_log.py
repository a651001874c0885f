"""How much log the server keeps for a slot, and how much more until it may remove log that the slot needs. Pure.

Source: PostgreSQL documentation, "pg_replication_slots" (restart_lsn, wal_status, safe_wal_size).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.io.postgres.preflight import Rows
from penstock.io.postgres.source import ChangeStream
from penstock.measurement import Measurement

# `invalidation_reason` exists from version 17 on; older ones say it by wal_status alone.
RETAINED = """
select slot_name::text,
       pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end,
                       restart_lsn)::int8,
       safe_wal_size,
       wal_status = 'lost' or coalesce(to_jsonb(slot) ->> 'invalidation_reason', '') <> ''
from pg_replication_slots slot where slot_name = any(%s) order by slot_name
"""


def retained_log(stream: ChangeStream, rows: Rows) -> list[Measurement]:
    """Return what the server keeps for the slots of a stream; it asks the server. A slot that is missing has none."""
    slots = [shard.slot for shard in stream.shards]
    return [each for row in rows(RETAINED, (slots,)) for each in _measurements(*row)]


def _measurements(slot: str, kept: int | None, safe: int | None, lost: Any) -> Iterator[Measurement]:
    labels = (("slot", slot),)
    yield Measurement(
        "penstock_slot_lost",
        int(bool(lost)),
        "1: the server has removed log that the slot needs.",
        labels=labels,
    )
    # A slot that is lost has no position any more, and a server without a limit has no rest.
    if kept is not None:
        text = "Log that the server keeps for the slot."
        yield Measurement("penstock_slot_retained_bytes", max(0, kept), text, "By", labels=labels)
    if safe is not None:
        text = "Log that the server can write until it may remove log that the slot needs."
        yield Measurement("penstock_slot_safe_bytes", max(0, safe), text, "By", labels=labels)
