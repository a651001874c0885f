"""A history of a MUTABLE_KEY_RANGE stream in the simulated service, asked without a server or a clock.

Each record is encoded by the service and decoded by the reader.
"""

from __future__ import annotations

import base64
import random

from penstock.io.spanner.decode_proto import decode_proto
from penstock.io.spanner.record import ChangeRecord, DataChangeRecord
from penstock_emulators.simulated_spanner.change_query import ChangeQuery, open_query
from penstock_emulators.simulated_spanner.churn import ChurnLimits
from penstock_emulators.simulated_spanner.clock import Clock
from penstock_emulators.simulated_spanner.database import Database
from penstock_emulators.simulated_spanner.history import play
from penstock_emulators.simulated_spanner.record import DataChange, Record
from penstock_emulators.simulated_spanner.record_encoding import proto_record

SECOND = 1_000_000_000
_CREATED = 1_700_000_000 * SECOND
_DDL = (
    "CREATE TABLE T (Id INT64 NOT NULL, V INT64) PRIMARY KEY (Id)",
    "CREATE CHANGE STREAM S FOR ALL OPTIONS (partition_mode = 'MUTABLE_KEY_RANGE')",
)


class MutableStream:
    """One history with few keys, which move often."""

    tick = SECOND // 5

    def __init__(self, seed: int, steps: int = 50) -> None:
        # Timestamps are whole milliseconds, as Beam watermarks are, so that no order is lost by rounding.
        self._made = Database(seed=seed, granularity_us=1000, partitions=3)
        self._made.apply_ddl(list(_DDL), _CREATED)
        rng = random.Random(seed)
        clock = Clock(speed=0, start=_CREATED)
        play(self._made, clock, rng, steps=steps, keys=6, limits=ChurnLimits(1, 5), churn_share=0.5)
        self._stream = self._made.streams["S"]
        self.start = self._stream.created
        self.horizon = max(clock.now(), self._made.last) + SECOND // 1000

    @property
    def tokens(self) -> list[str]:
        """All tokens, in the order of their creation."""
        return [token for ranges in self._stream.functions.values() for token in ranges.partitions]

    @property
    def records(self) -> list[DataChangeRecord]:
        """All data change records of all partitions."""
        logged = [
            record
            for ranges in self._stream.functions.values()
            for partition in ranges.partitions.values()
            for record in partition.records
            if isinstance(record, DataChange)
        ]
        return [each for each in map(_decoded, logged) if isinstance(each, DataChangeRecord)]

    def ask(self, token: str, start: int, end: int) -> list[ChangeRecord]:
        """Return the service's answer to a query whose end has passed."""
        placement = next(iter(self._stream.functions))
        query = ChangeQuery(self._stream, placement, "READ_S", start, end, token or None, SECOND)
        now = max(end, self._made.last)
        running = open_query(self._made, query, now)
        found: list[Record] = []
        while not running.done:
            found += [record for record, _, _ in running.poll(now)]
        return [_decoded(record) for record in found]


def _decoded(record: Record) -> ChangeRecord:
    return decode_proto(base64.b64encode(proto_record(record).SerializeToString()).decode())
