"""Seeded histories of writes, layout changes and readers, without gRPC and with a clock that is set by hand.

The reader follows the documentation. It reopens a part whose merge has stalled as a separate partition. It may
crash at any step and resumes from the last token that it received.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from google.cloud.bigtable_v2.types import bigtable as api

from penstock_emulators.bigtable import session
from penstock_emulators.bigtable.layout import KeyRange, Layout, random_change
from penstock_emulators.bigtable.session import Session
from penstock_emulators.bigtable.table import ChangeStream
from penstock_emulators.bigtable.wire import Mutation, Origin, Response, partition_message
from tests.conftest import Campaign

Range = tuple[bytes, bytes]
DAY_US = 86_400_000_000


class Time:
    """A clock in microseconds that a history advances."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.now_us


@dataclass
class Open:
    """A partition that is being read: its session, and the tokens from which it resumes."""

    session: Session
    tokens: list[tuple[Range, str]]


@dataclass
class History:
    """One random history and the records that its reader has received."""

    rng: random.Random
    time: Time = field(default_factory=Time)
    open: dict[Range, Open] = field(default_factory=dict)
    idle: dict[Range, tuple[str, Range]] = field(default_factory=dict)
    seen: list[tuple[bytes, int, int]] = field(default_factory=list)
    low_us: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stream = ChangeStream(DAY_US, Layout.whole(), self.time)
        self.stream.close_unevenly(30_000, self.rng.randrange(1 << 30))
        self.start_us = self.time.now_us
        self.written: list[tuple[bytes, int]] = []
        self.number = 0
        self.open[b"", b""] = Open(self._session((b"", b""), []), [])

    def act(self) -> None:
        """Perform one random action."""
        self.time.now_us += self.rng.choice([self.rng.randrange(1, 50), self.rng.randrange(1, 50), 20_000])
        kind = self.rng.random()
        if kind < 0.4:
            self._write()
        elif kind < 0.55:
            keys = [b"%02d" % self.rng.randrange(1, 40) for _ in range(3)]
            self.stream.relay(random_change(self.stream.layout, self.rng, keys, most=6))
        elif kind < 0.6 and self.open:
            self._crash(self.rng.choice(sorted(self.open)))
        elif kind < 0.65 and self.idle:
            self._reopen(self.rng.choice(sorted(self.idle)))
        elif self.open:
            self._step(self.rng.choice(sorted(self.open)))

    def finish(self) -> None:
        """Read all remaining records without further layout changes."""
        for _ in range(2000):
            self.time.now_us += 1000
            for part in sorted(self.idle):
                if part in self.idle:
                    self._reopen(part)
            before = len(self.seen)
            for keys in sorted(self.open):
                if keys in self.open:
                    self._step(keys)
            if not self.idle and before == len(self.seen) == len(self.written):
                return
        raise AssertionError(f"{len(self.written) - len(self.seen)} records never arrived")

    def _write(self) -> None:
        changes = []
        for _ in range(self.rng.randrange(1, 4)):
            mutation = Mutation()
            mutation.set_cell.family_name, mutation.set_cell.timestamp_micros = "f", self.number
            changes.append((b"%02d" % self.rng.randrange(40), [mutation]))
            self.written.append((changes[-1][0], self.number))
            self.number += 1
        self.stream.append(changes, Origin("c"), self.time.now_us - 3)

    def _session(self, keys: Range, tokens: list[tuple[Range, str]]) -> Session:
        request = api.ReadChangeStreamRequest.pb()(partition=partition_message(KeyRange(*keys)))
        for part, token in tokens:
            given = request.continuation_tokens.tokens.add(token=token)
            given.partition.CopyFrom(partition_message(KeyRange(*part)))
        request.heartbeat_duration.FromMicroseconds(50_000)
        if not tokens:
            request.start_time.FromMicroseconds(self.start_us)
        return Session.open(self.stream, request, self.time.now_us)

    def _crash(self, keys: Range) -> None:
        tokens = self.open[keys].tokens
        self.open[keys] = Open(self._session(keys, tokens), tokens)

    def _reopen(self, part: Range) -> None:
        token, _ = self.idle.pop(part)
        self.open[part] = Open(self._session(part, [(part, token)]), [(part, token)])

    def _step(self, keys: Range) -> None:
        reading = self.open[keys]
        step = reading.session.step(self.time.now_us)
        for response in map(Response.FromString, step.responses):
            kind = response.WhichOneof("stream_record")
            if kind == "data_change":
                self._saw(response.data_change)
                self._promised(keys, response.data_change.estimated_low_watermark)
                reading.tokens = [(keys, response.data_change.token)]
            elif kind == "heartbeat":
                self._promised(keys, response.heartbeat.estimated_low_watermark)
                reading.tokens = [(keys, response.heartbeat.continuation_token.token)]
            else:
                del self.open[keys]
                self._closed(response.close_stream)

    def _saw(self, change) -> None:
        (chunk,) = change.chunks
        commit_us = change.commit_timestamp.ToMicroseconds()
        assert commit_us >= self.low_us.get(change.row_key, 0), "below a watermark sent before"
        self.seen.append((change.row_key, commit_us, chunk.mutation.set_cell.timestamp_micros))

    def _promised(self, keys: Range, watermark) -> None:
        """Store the watermark for every row of the partition: no later record may be below it."""
        for key in [b"%02d" % number for number in range(40)]:
            if KeyRange(*keys).holds(key):
                self.low_us[key] = max(self.low_us.get(key, 0), watermark.ToMicroseconds())

    def _closed(self, close) -> None:
        for token, target in zip(close.continuation_tokens, close.new_partitions, strict=True):
            part = (token.partition.row_range.start_key_closed, token.partition.row_range.end_key_open)
            to = (target.row_range.start_key_closed, target.row_range.end_key_open)
            self.idle[part] = (token.token, to)
            self._open_if_covered(to)

    def _open_if_covered(self, target: Range) -> None:
        parts = sorted(part for part, (_, to) in self.idle.items() if to == target)
        reached = target[0]
        for start, end in parts:
            if start != reached:
                return
            reached = end
        if reached == target[1]:
            tokens = [(part, self.idle.pop(part)[0]) for part in parts]
            self.open[target] = Open(self._session(target, tokens), tokens)


def test_every_record_is_read_once_and_in_order_through_random_layout_changes(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_RECORDS_A_STEP", 2)  # so that streams lag, and merge at unequal positions
    for number in range(campaign.size(60, 2000)):
        history = History(campaign.random(f"sessions/{number}"))
        for _ in range(150):
            history.act()
        history.finish()
        assert sorted((key, number) for key, _, number in history.seen) == sorted(history.written)
        rows: dict[bytes, list[tuple[int, int]]] = {}
        for key, commit_us, order in history.seen:
            rows.setdefault(key, []).append((commit_us, order))
        assert all(row == sorted(set(row)) for row in rows.values()), f"order per row, history {number}"
