"""Deliveries to a real broker, which is crashed, paused and asked by paused drivers."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.event import ChangeEvent, Op
from penstock.io.kafka import sender as sender_module
from penstock.io.kafka.errors import KafkaTargetError
from penstock.io.kafka.ledger import Ledger
from penstock.io.staging.delivery import (
    FencedError,
    LedgerConflictError,
    Refusal,
    RefusalError,
    Sent,
)
from penstock.transforms.formats.change_feed import ChangeFeedFormat
from penstock_emulators.kafka import KafkaBroker
from tests.integration.kafka.conftest import CLIENT_LOG, Target, header
from tests.support.changing_table import changed_table
from tests.support.oracle.change_feed import consumed

pytestmark = [pytest.mark.kafka, pytest.mark.long(seconds=15)]


def events(seed: int, statements: int = 60) -> list[ChangeEvent]:
    return [
        each for each in changed_table(seed, statements, partial=False).events if each.op is not Op.TRUNCATE
    ]


def batches(found: list[ChangeEvent], size: int = 9) -> list[list[ChangeEvent]]:
    return [found[place : place + size] for place in range(0, len(found), size)]


def expected_ids(target: Target, found: list[ChangeEvent]) -> list[str]:
    """A DELETE is two records in Debezium's format, a key change three: each has the id of its event."""
    return sorted(event.id for event in found for _ in target.target.format(event))


def test_each_event_is_committed_once_through_repeats_and_other_processes(target: Target) -> None:
    rng, found = random.Random(1), events(1)
    sent = batches(found, 18)
    for epoch, batch in enumerate(sent, 1):
        target.deliver(batch, epoch=epoch)
        repeated = rng.randrange(1, epoch + 1)
        assert target.deliver(sent[repeated - 1], epoch=repeated) == Sent()
    assert sorted(target.ids()) == expected_ids(target, found)


def test_records_of_a_key_are_in_one_partition_in_commit_order(target: Target) -> None:
    found = events(2)
    for batch in batches(found):
        target.deliver(batch)
    places: dict[bytes | None, set[int]] = {}
    versions: dict[bytes | None, list[str]] = {}
    for message in target.messages():
        places.setdefault(message.key(), set()).add(message.partition() or 0)
        versions.setdefault(message.key(), []).append(header(message, "penstock.version"))
    assert all(len(partitions) == 1 for partitions in places.values())
    assert all(found == sorted(found) for found in versions.values())
    assert any(message.value() is None for message in target.messages())


def test_a_consumer_of_a_change_feed_has_the_table_by_the_keys_of_its_records(broker: KafkaBroker) -> None:
    table = changed_table(4, 120, partial=False, truncates=False)
    target = Target(broker, format=ChangeFeedFormat(), topic="feed-of-orders")
    for epoch, batch in enumerate(batches(table.events), 1):
        target.deliver(batch, epoch=epoch)
        assert target.deliver(batch, epoch=epoch) == Sent(), "a repeat"
    messages = target.messages("feed-of-orders")
    assert len({message.partition() for message in messages}) > 1
    records = [(message.key(), message.value() or b"") for message in messages]
    assert len(records) == sum(len(target.target.format(event)) for event in table.events)
    assert consumed(records, "k") == table.rows
    places: dict[bytes | None, set[int | None]] = {}
    for message in messages:
        places.setdefault(message.key(), set()).add(message.partition())
    assert all(len(partitions) == 1 for partitions in places.values())


def test_transaction_of_a_process_that_died_is_not_seen(target: Target) -> None:
    (batch, *_) = batches(events(3))
    dying = target.open()
    writer = dying._writer(target.delivery(1).writer)
    records = dying._records(batch, sender_module._Attempt())
    writer.producer.begin_transaction()
    writer.open.produce(records, sender_module._Attempt())
    target.deliver(batch)
    assert sorted(target.ids()) == expected_ids(target, batch)
    assert len(target.messages(isolation="read_uncommitted")) == 2 * len(target.ids())


def test_records_are_not_committed_without_their_entry_in_the_ledger(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch, *_) = batches(events(10))
    write, failures = Ledger.write, iter([KafkaException(KafkaError(KafkaError._TIMED_OUT))])

    def fails_once(*arguments: Any) -> None:
        for error in failures:
            raise error
        write(*arguments)

    monkeypatch.setattr(Ledger, "write", fails_once)
    target.deliver(batch)
    assert sorted(target.ids()) == expected_ids(target, batch)


def test_driver_that_wakes_up_in_the_middle_of_its_transaction_commits_nothing(target: Target) -> None:
    first, second, *_ = batches(events(4))
    target.deliver(first)
    zombie = target.open()
    writer = zombie._writer(target.delivery(2).writer)
    ready = target.open()
    ready.send(target.delivery(2, generation=2), second)
    # It still believes what it read from the ledger before the other driver took over.
    assert writer.entry is not None
    assert writer.entry.epoch == 1
    with pytest.raises(FencedError):
        zombie.send(target.delivery(2), second)
    zombie.close()
    assert sorted(target.ids()) == expected_ids(target, first + second)


@pytest.mark.parametrize("records", [1, 150, 300])
def test_driver_that_is_replaced_while_it_sends_is_told_so(
    target: Target, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """The client raises the fatal error when records are still without a report."""
    produce_one, sent, found = sender_module._produce_one, itertools.count(1), events(14, 400)
    old, new = target.open(), target.open()

    def produce(*args: Any) -> None:
        produce_one(*args)
        if next(sent) == records:
            new._writer(target.delivery(1).writer)

    with monkeypatch.context() as patch, pytest.raises(FencedError):
        patch.setattr(sender_module, "_produce_one", produce)
        old.send(target.delivery(1), found)
    old.close()
    new.send(target.delivery(1, generation=2), found)
    new.close()
    assert sorted(target.ids()) == expected_ids(target, found)


def test_driver_that_starts_again_after_a_newer_one_sends_nothing_and_delays_it_only(target: Target) -> None:
    first, second, third, *_ = batches(events(5))
    good = target.open()
    good.send(target.delivery(1, 1), first)
    good.send(target.delivery(3, 2), second)
    zombie = target.open()
    for epoch in (1, 4):
        with pytest.raises(LedgerConflictError):
            zombie.send(target.delivery(epoch, 1), third)
    with pytest.raises(LedgerConflictError):  # a copy of the checkpoint, with the same numbers
        zombie.send(target.delivery(3, 2, token="b"), third)
    with pytest.raises(FencedError):
        good.send(target.delivery(4, 2), third)
    target.deliver(third, epoch=4, generation=2)
    assert sorted(target.ids()) == expected_ids(target, first + second + third)
    for each in (good, zombie):
        each.close()


def test_ledger_survives_the_loss_of_the_groups_offset(target: Target) -> None:
    (batch, *_) = batches(events(6))
    target.deliver(batch)
    settings = {"bootstrap.servers": target.broker.address}
    group = Consumer({**settings, "group.id": "any"}, logger=CLIENT_LOG)
    admin = AdminClient(settings, logger=CLIENT_LOG)
    groups = [each.group_id for each in admin.list_consumer_groups().result().valid]
    mine = sender_module._Writer(target.target, target.delivery(1).writer)
    name = mine.ledger._consumer.consumer_group_metadata()
    for future in admin.delete_consumer_groups(
        [each for each in groups if each.startswith("penstock-")]
    ).values():
        future.result()
    assert mine.ledger._consumer.committed([TopicPartition("penstock-ledger", 0)], 10)[0].offset < 0, name
    assert target.deliver(batch, epoch=1) == Sent()
    assert sorted(target.ids()) == expected_ids(target, batch)
    mine.close()
    group.close()


def test_large_records_are_refused_by_each_repeat_and_the_others_are_written(broker: KafkaBroker) -> None:
    target = Target(
        broker, topic_config=(("max.message.bytes", "2000"),), config={"compression.type": "none"}
    )
    (batch, *_) = batches(events(7), 8)
    large = msgspec.structs.replace(
        batch[3], user="", after={**(batch[3].key or {}), "a": 1, "b": 1, "c": 10**3000}
    )
    # The client reports a record by its content, and the content of these two is equal.
    sent = target.deliver([*batch[:3], large, large, *batch[4:]], skip_refused=True)
    assert sent == Sent(tuple(Refusal(index, "Kafka says MSG_SIZE_TOO_LARGE") for index in (3, 4)))
    assert target.deliver([], epoch=1, skip_refused=True) == sent
    assert sorted(target.ids()) == expected_ids(target, [*batch[:3], *batch[4:]])
    with pytest.raises(RefusalError):
        target.deliver([large])


def test_event_that_the_format_cannot_express_is_refused_with_its_reason(broker: KafkaBroker) -> None:
    def one_is_bad(event: ChangeEvent) -> Any:
        if event.key == {"k": 1}:
            raise ValueError("no such type")
        return ()

    (batch, *_) = batches(events(7), 8)
    sent = Target(broker, format=one_is_bad).deliver(batch, skip_refused=True)
    assert [each.index for each in sent.refused] == [
        n for n, each in enumerate(batch) if each.key == {"k": 1}
    ]
    assert {each.reason for each in sent.refused} == {"no such type"}


def test_repeat_of_an_idempotent_batch_has_the_same_ids_and_versions(broker: KafkaBroker) -> None:
    target = Target(broker, guarantee="idempotent")
    (batch, *_) = batches(events(8))
    target.deliver(batch)
    target.deliver(batch, epoch=1)
    found = [(header(m, "penstock.id"), header(m, "penstock.version"), m.value()) for m in target.messages()]
    assert len(found) == 2 * len(set(found))


def test_missing_topic_is_an_error_that_names_the_fix(broker: KafkaBroker) -> None:
    target = Target(broker, create_topics=False)
    with pytest.raises(KafkaTargetError, match="create_topics=True"):
        target.deliver(batches(events(7))[0])


def test_password_is_not_shown(broker: KafkaBroker) -> None:
    assert "secret" not in repr(Target(broker, config={"sasl.password": "secret"}).target)


@pytest.mark.campaign  # deliveries to a server that crashes are tested with PostgreSQL
def test_broker_that_crashes_and_comes_back_gets_each_event_once() -> None:
    found = batches(events(9))
    with KafkaBroker.start() as broker:
        target = Target(broker)
        target.deliver(found[0])
        # Kafka 4.3 answers a commit before its markers are written. A single broker that is killed between them takes
        # the transaction for complete when it comes back, and never shows its records.
        assert sorted(target.ids()) == expected_ids(target, found[0])
        broker.kill()
        broker.restart()
        target.deliver(found[1], epoch=2)
        target.deliver(found[0], epoch=1)
        assert sorted(target.ids()) == expected_ids(target, found[0] + found[1])
