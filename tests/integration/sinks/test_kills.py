"""SIGKILL of driver, JVM and workers while one pipeline writes a replica, a change log and a Kafka topic.

The events are generated, so the rows and the log are known without reading anything. The target goes down too.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.emulators.kafka import KafkaBroker
from penstock.emulators.postgres import PostgresServer
from tests.integration.kafka.conftest import header, read_all
from tests.oracle import kill
from tests.oracle.kill import After, FileAppears, Later, Moment, python

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow(seconds=90)]

KEYS, ROUND, SLOTS = 3, 4, 7


class Numbers:
    """How far each key has come, and the end that the program is told."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.hooks, self.checkpoint, self.dsn, self.end = folder / "hooks", folder / "checkpoint", dsn, 0
        self.hooks.mkdir()

    def end_soon(self) -> None:
        with psycopg.connect(self.dsn) as session:
            ((most,),) = session.execute("select coalesce(max(version), '0') from counts_log").fetchall()
        self.end = int(str(most).split(" ")[0]) + 600
        (self.hooks / "end.new").write_text(str(self.end))
        (self.hooks / "end.new").rename(self.hooks / "end")

    def moments(self) -> dict[str, Moment]:
        return {
            "after the commit": FileAppears(self.checkpoint, "records/*.record", nth=3),
            "while rows are sent": Later(FileAppears(self.hooks, "sent-*", nth=2), 0.05),
            "after the read": FileAppears(self.hooks, "read-*"),
        }

    def rows(self) -> list[tuple[str, int, int, int]]:
        """The rows after all statements, in the order of the key."""
        found = {}
        for owner in (f"k{number}" for number in range(KEYS)):
            for number in range(self.end):
                key, step = (owner, number // ROUND % SLOTS), number % ROUND
                if step == 0:
                    found[key] = [number, number]
                elif step == 3 and number % 3 == 0:
                    del found[key]
                else:
                    found[key][0 if step == 1 else 1] = number
        return sorted((*key, *values) for key, values in found.items())


def test_kills_leave_the_replica_the_log_and_the_topic_as_the_source(tmp_path: Path, campaign: Any) -> None:
    draw = campaign.random("sinks")
    with PostgresServer.start() as server, KafkaBroker.start() as broker:
        numbers = Numbers(tmp_path, server.dsn())
        named = list(numbers.moments().items())
        chosen = [named[number % len(named)] for number in range(campaign.size(3, 30))]
        chosen += [("at random", After(8 + draw.random() * 8)) for _ in range(campaign.size(0, 10))]
        # The target is down for a while, once; the sink waits for it.
        outage = threading.Timer(12, lambda: (server.kill(), server.restart()))
        outage.start()
        command = python(
            "tests.integration.sinks.program",
            *(server.dsn(), broker.address, str(numbers.checkpoint), str(numbers.hooks), str(KEYS)),
        )
        kills = kill.campaign(
            command,
            chosen,
            log=tmp_path / "log",
            seconds=campaign.size(180, 900),
            before_the_end=numbers.end_soon,
        )
        outage.join()
        with psycopg.connect(server.dsn()) as session:
            replica = session.execute(
                "select owner, slot, a, b from counts where not _penstock_deleted order by owner, slot"
            ).fetchall()
            log = session.execute(
                "select key ->> 'owner', version from counts_log order by version collate \"C\""
            ).fetchall()
        messages = Counter(
            header(each, "penstock.version") for each in read_all(broker.address, "shop.counts")
        )
    assert len(kills) == len(chosen)
    assert replica == numbers.rows()
    assert Counter(log) == Counter(set(log)), "an event is in the log twice"
    assert len(log) == KEYS * numbers.end
    assert messages == Counter(version for _, version in log)
    campaign.record("sink-kills", kills=len(kills), events=len(log))
