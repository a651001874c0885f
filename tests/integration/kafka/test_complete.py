"""The topic that says until when the topics of a sink are complete."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import pytest

from penstock.compat import UTC
from penstock.errors import UsageError
from penstock.io.kafka import WriteToKafka, complete_until
from penstock.io.kafka.sender import KafkaSender
from penstock.io.kafka.write import connector_of
from penstock.io.staging.delivery import FencedError
from penstock.io.staging.send import SendBatchesFn
from penstock.transforms import DebeziumFormat
from penstock_emulators.kafka import KafkaBroker
from tests.integration.kafka.conftest import Target, header

pytestmark = [pytest.mark.kafka, pytest.mark.slow(seconds=10)]

NOON_US = 1_769_860_800_000_000
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def marked(broker: KafkaBroker, request: pytest.FixtureRequest) -> Target:
    return Target(broker, mark_complete=True, complete_topic=f"complete-{request.node.name[:60]}")


def mark(target: Target, record: int, until_us: int, sink: str = "one", job: str = "job") -> None:
    """Write a mark as another process does. All tests share the ledger, so the names of their jobs differ."""
    fn = SendBatchesFn(connector_of(target.target), sink, None)
    fn.mark_complete(f"{target.server}-{job}", record, until_us)


def times(target: Target) -> list[str]:
    """Return the times that a consumer of the topic sees, in its order."""
    messages = target.messages(target.target.complete_topic)
    return [header(each, "penstock.complete_until") for each in messages]


def test_the_time_of_a_sink_moves_on_and_never_back(marked: Target) -> None:
    mark(marked, 10, NOON_US)
    mark(marked, 11, NOON_US + 1_000_000)
    # A driver that was paused wakes up.
    mark(marked, 10, NOON_US)
    assert times(marked) == ["2026-01-31T12:00:00.000000000Z", "2026-01-31T12:00:01.000000000Z"]
    (message, _) = marked.messages(marked.target.complete_topic)
    assert (message.key(), message.timestamp()[1]) == (f"one/{marked.server}-job".encode(), NOON_US // 1000)
    assert msgspec.json.decode(message.value() or b"") == {
        "complete_until": "2026-01-31T12:00:00.000000000Z",
        "job": f"{marked.server}-job",
        "sink": "one",
        "record": 10,
    }


def test_a_driver_that_is_paused_in_the_middle_of_a_mark_does_not_put_the_time_back(
    marked: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = KafkaSender._writer

    def pause(self: KafkaSender, name: str) -> object:
        """The producer is open, and the ledger read; now the successor writes a newer mark."""
        writer = original(self, name)
        monkeypatch.setattr(KafkaSender, "_writer", original)
        mark(marked, 12, NOON_US + 1)
        return writer

    monkeypatch.setattr(KafkaSender, "_writer", pause)
    with pytest.raises(FencedError):
        mark(marked, 10, NOON_US)
    assert times(marked) == ["2026-01-31T12:00:00.000001000Z"]


def test_topics_of_two_sinks_are_complete_when_both_are(marked: Target) -> None:
    mark(marked, 10, NOON_US + 1, "one", "job")
    mark(marked, 10, NOON_US, "two", "job")
    mark(marked, 10, NOON_US + 2, "two", "other")
    found = complete_until(marked.broker.address, topic=marked.target.complete_topic)
    assert found == {
        f"{marked.server}-job": NOON,
        f"{marked.server}-other": NOON + timedelta(microseconds=2),
    }


def test_without_the_option_there_is_no_topic(target: Target) -> None:
    mark(target, 10, NOON_US)
    sender = target.open()
    try:
        assert target.target.complete_topic not in sender._existing()  # type: ignore[attr-defined]
    finally:
        sender.close()


def test_an_idempotent_sink_has_no_marks() -> None:
    with pytest.raises(UsageError, match="mark_complete needs guarantee=transactional"):
        WriteToKafka("b:9092", format=DebeziumFormat("s"), guarantee="idempotent", mark_complete=True)
