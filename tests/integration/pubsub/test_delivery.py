"""Deliveries to Google's emulator: ids that tell repeats, ordering keys, limits, an outage."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from google.cloud import pubsub_v1

from penstock.compat import UTC
from penstock.errors import UsageError
from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, TableSchema
from penstock.io.pubsub import CompleteTimes, WriteToPubSub, sender
from penstock.io.pubsub.errors import PubSubTargetError
from penstock.io.pubsub.target import PubSubTarget
from penstock.io.pubsub.write import connector_of
from penstock.io.staging.delivery import Delivery, RefusalError, Sent, TargetUnavailableError
from penstock.io.staging.send import SendBatchesFn
from penstock.transforms.formats.change_feed import ChangeFeedFormat
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock_emulators.pubsub import PubSubEmulator
from tests.support.changing_table import SCHEMA, changed_table
from tests.support.oracle.change_feed import consumed

pytestmark = [pytest.mark.pubsub, pytest.mark.slow]

PROJECT = "penstock-tests"
WITH_TEXT = TableSchema((*SCHEMA.columns, Column("t", ColumnType(Kind.STRING))))
NOON_US = 1_769_860_800_000_000
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator.start() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", running.host)
        yield running


class Topic:
    """A topic with a subscription, and the sink that writes to it."""

    def __init__(self, **options: Any) -> None:
        self.name = f"orders-{next(_NUMBERS)}"
        given = {"project": PROJECT, "topic": self.name, "format": DebeziumFormat("shop"), **options}
        self.target = PubSubTarget(**given)
        self.subscriber = pubsub_v1.SubscriberClient()
        self.subscription = self.subscriber.subscription_path(PROJECT, self.name)

    def create(self) -> None:
        topic = self.subscriber.topic_path(PROJECT, self.name)
        pubsub_v1.PublisherClient().create_topic(name=topic)
        settings = {"name": self.subscription, "topic": topic, "enable_message_ordering": True}
        self.subscriber.create_subscription(request=settings)

    def deliver(self, events: list[ChangeEvent], *, skip_refused: bool = False) -> Sent:
        open_sender = connector_of(self.target).open(skip_refused=skip_refused)
        try:
            return open_sender.send(Delivery("sink", "job", 0, 1, 1, 1), events)
        finally:
            open_sender.close()

    def messages(self, count: int) -> list[Any]:
        """Return the next messages of the subscription, in the order in which they come."""
        found: list[Any] = []
        while len(found) < count:
            answer = self.subscriber.pull(subscription=self.subscription, max_messages=1000, timeout=30)
            found += [received.message for received in answer.received_messages]
            ids = [received.ack_id for received in answer.received_messages]
            if ids:
                self.subscriber.acknowledge(subscription=self.subscription, ack_ids=ids)
        return found


@pytest.fixture
def topic(emulator: PubSubEmulator) -> Topic:
    topic = Topic()
    topic.create()
    return topic


def events(seed: int) -> list[ChangeEvent]:
    return [each for each in changed_table(seed, 40, partial=False).events if each.op is not Op.TRUNCATE]


def expected(topic: Topic, found: list[ChangeEvent]) -> list[str]:
    return sorted(f"{e.id}/{n}" for e in found for n, _ in enumerate(topic.target.format(e)))


def test_messages_of_a_row_have_one_ordering_key_and_come_in_commit_order(topic: Topic) -> None:
    found = events(1)
    topic.deliver(found)
    ids = expected(topic, found)
    versions: dict[str, list[str]] = {}
    messages = topic.messages(len(ids))
    for message in messages:
        versions.setdefault(message.ordering_key, []).append(message.attributes["penstock_version"])
    assert sorted(message.attributes["penstock_id"] for message in messages) == ids
    assert len(versions) == len({str(event.key) for event in found})
    assert all(each == sorted(each) for each in versions.values())


def test_a_consumer_of_a_change_feed_has_the_table_by_the_ordering_keys_of_its_messages(
    emulator: PubSubEmulator,
) -> None:
    table = changed_table(4, 60, partial=False, truncates=False)
    topic = Topic(format=ChangeFeedFormat())
    topic.create()
    topic.deliver(table.events)
    messages = topic.messages(len(expected(topic, table.events)))
    assert {message.attributes["penstock_id"] for message in messages} == set(expected(topic, table.events))
    rows = {message.data: json.loads(message.data)["k"] for message in messages}
    assert consumed([(b'{"k":%d}' % key, data) for data, key in rows.items()], "k") == table.rows
    keys = {(message.ordering_key, rows[message.data]) for message in messages}
    assert len(keys) == len({ordering for ordering, _ in keys}) == len(set(rows.values()))


def test_repeat_has_the_same_ids(topic: Topic) -> None:
    found = events(2)
    topic.deliver(found)
    topic.deliver(found)
    ids = expected(topic, found)
    messages = topic.messages(2 * len(ids))
    assert sorted(message.attributes["penstock_id"] for message in messages) == sorted(ids * 2)
    assert len({(m.attributes["penstock_id"], m.data) for m in messages}) == len(ids)


def test_large_message_is_refused_and_the_others_are_published(topic: Topic) -> None:
    good = events(3)[:6]
    large = msgspec.structs.replace(
        good[2], after={**(good[2].key or {}), "t": "x" * 9_950_000}, schema=WITH_TEXT
    )
    with pytest.raises(RefusalError, match="Pub/Sub takes"):
        topic.deliver([large])
    sent = topic.deliver([*good[:2], large, *good[3:]], skip_refused=True)
    assert [each.index for each in sent.refused] == [2]
    ids = expected(topic, [*good[:2], *good[3:]])
    assert sorted(m.attributes["penstock_id"] for m in topic.messages(len(ids))) == ids


def test_missing_topic_is_an_error_unless_topics_are_created(emulator: PubSubEmulator) -> None:
    with pytest.raises(PubSubTargetError, match="create_topics=True"):
        connector_of(Topic().target).check()
    connector_of(Topic(create_topics=True).target).check()


def mark(topic: Topic, record: int, until_us: int, sink: str = "one", job: str = "job") -> None:
    """Send a mark as another process does."""
    SendBatchesFn(connector_of(topic.target), sink, None).mark_complete(job, record, until_us)


def test_the_messages_say_until_when_the_topics_are_complete_in_any_order(emulator: PubSubEmulator) -> None:
    marks = Topic()
    marks.create()
    data = Topic(mark_complete=True, complete_topic=marks.name, create_topics=True)
    connector_of(data.target).check()
    mark(data, 10, NOON_US)
    mark(data, 12, NOON_US + 2)
    # A driver that was paused wakes up.
    mark(data, 11, NOON_US + 1)
    mark(data, 10, NOON_US + 1, "two")
    mark(data, 10, NOON_US + 5, "one", "other")
    messages = marks.messages(5)
    assert {each.attributes["penstock_id"] for each in messages} >= {"one/job/10", "two/job/10"}
    assert {each.attributes["penstock_complete_until"] for each in messages} >= {
        "2026-01-31T12:00:00.000000000Z"
    }
    for order in itertools.permutations(messages):
        times = CompleteTimes()
        for message in order:
            times.add(message.data)
        assert times.complete_until() == {
            "job": NOON + timedelta(microseconds=1),
            "other": NOON + timedelta(microseconds=5),
        }


def test_the_check_looks_for_the_topic_of_the_marks(emulator: PubSubEmulator) -> None:
    topic = Topic(mark_complete=True, complete_topic="marks-of-nobody")
    topic.create()
    with pytest.raises(PubSubTargetError, match="topics/marks-of-nobody does not exist"):
        connector_of(topic.target).check()


def test_a_mark_is_no_message_of_the_data() -> None:
    with pytest.raises(UsageError, match="complete_topic must be another topic"):
        WriteToPubSub(
            project="p", topic="t", format=DebeziumFormat("s"), mark_complete=True, complete_topic="t"
        )


@pytest.mark.long_cases("False", seconds=5)
@pytest.mark.parametrize("ordering", [True, False])
def test_batch_is_published_after_an_outage(
    ordering: bool, emulator: PubSubEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(ordering=ordering)
    topic.create()
    monkeypatch.setattr(sender, "_ANSWER_SECONDS", 0.5)
    found = events(4)[:5]
    topic.deliver(found)
    emulator.stop()
    with pytest.raises(TargetUnavailableError):
        topic.deliver(found)
    emulator.restart()
    topic.create()
    monkeypatch.undo()
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.host)
    topic.deliver(found)
    ids = expected(topic, found)
    assert sorted(m.attributes["penstock_id"] for m in topic.messages(len(ids))) == ids
