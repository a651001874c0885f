"""Which requests the sink makes for missing topics, and which part of the ledger topic it reads. No broker."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.io.kafka.sender import KafkaSender
from penstock.io.kafka.target import KafkaTarget
from penstock.io.kafka.values import Record
from penstock.transforms.formats.debezium import DebeziumFormat


class Admin:
    """Has topics, and counts requests."""

    def __init__(self, *topics: str) -> None:
        self.topics = set(topics)
        self.lists = 0
        self.created: list[list[Any]] = []

    def list_topics(self, timeout: float) -> Any:
        self.lists += 1
        return SimpleNamespace(topics={name: SimpleNamespace(error=None) for name in self.topics})

    def create_topics(self, new: list[Any], operation_timeout: float) -> dict[str, Future[None]]:
        self.created.append(new)
        answers: dict[str, Future[None]] = {}
        for each in new:
            answers[each.topic] = Future()
            if each.topic in self.topics:
                answers[each.topic].set_exception(KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
            else:
                answers[each.topic].set_result(None)
                self.topics.add(each.topic)
        return answers


def sender_of(admin: Admin, monkeypatch: pytest.MonkeyPatch, **options: Any) -> KafkaSender:
    monkeypatch.setattr("penstock.io.kafka.sender.AdminClient", lambda *settings, **more: admin)
    return KafkaSender(KafkaTarget("localhost:1", DebeziumFormat("shop"), **options), skip_refused=False)


def records(count: int) -> list[Record]:
    return [Record(number, f"t{number:03d}", None, None, 0, []) for number in range(count)]


def test_the_topics_of_a_batch_are_listed_once_and_created_a_hundred_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = Admin("t001")
    sender = sender_of(admin, monkeypatch, guarantee="idempotent")
    sender._create_topics(records(250))
    assert admin.lists == 1
    assert [len(new) for new in admin.created] == [100, 100, 49]
    sender._create_topics(records(250))
    assert admin.lists == 1


def test_a_missing_topic_that_is_not_to_be_created_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = sender_of(Admin("t000"), monkeypatch, guarantee="idempotent", create_topics=False)
    sender._create_topics(records(1))
    with pytest.raises(KafkaException):
        sender._create_topics(records(2))


def test_a_topic_that_another_worker_creates_at_the_same_time_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = Admin()
    sender = sender_of(admin, monkeypatch, guarantee="idempotent")
    monkeypatch.setattr(sender, "_existing", frozenset)
    admin.topics.add("t000")
    sender._create_topics(records(2))
    assert admin.topics == {"t000", "t001"}


def test_the_ledger_topic_is_compacted_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin()
    sender_of(admin, monkeypatch)
    ((ledger,),) = admin.created
    assert ledger.topic == "penstock-ledger"
    assert ledger.config["cleanup.policy"] == "compact"
    # A new writer reads the topic. Only closed segments are compacted, and by default one is closed after seven days.
    assert int(ledger.config["segment.ms"]) <= 3_600_000
