"""The ledger of a transactional sink, with a broker whose connections end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.io.kafka.ledger import Ledger, StoredEntry
from tests.integration.kafka.conftest import CLIENT_LOG
from tests.support.sinks.network import Fate, Network
from tests.support.sinks.queues import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow(seconds=20)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    folder = tmp_path_factory.mktemp("kafka")
    broker = Kafka(folder / "target", folder, Network())
    broker.start()
    broker.create("shop")
    yield broker
    broker.stop()


@pytest.mark.long_cases("the request for the transaction", seconds=5)
@pytest.mark.parametrize(
    "lost", [0, 1], ids=["the request for the transaction", "the request for the offset"]
)
def test_a_ledger_that_no_broker_takes_is_given_up_in_time(
    broker: Kafka, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """librdkafka itself repeats the second request for as long as the connections end."""
    assert broker.network is not None
    name = f"shop-{lost}"
    options: dict[str, Any] = broker.options()
    settings = {**options["config"], "bootstrap.servers": options["servers"]}
    admin = AdminClient(settings, logger=CLIENT_LOG)
    admin.create_topics([NewTopic(name, 1)])[name].result(60)
    producer = Producer({**settings, "transactional.id": name}, logger=CLIENT_LOG)
    producer.init_transactions(60)
    ledger = Ledger(settings, name, "writer", name)
    producer.begin_transaction()
    producer.produce(name, b"value", b"key")
    assert producer.flush(60) == 0
    broker.network.kill_at(lost, Fate.REQUEST_LOST)
    with monkeypatch.context() as hurried, pytest.raises(KafkaException) as raised:
        hurried.setattr("penstock.io.kafka.ledger._REQUEST_SECONDS", 2.0)
        ledger.write(producer, StoredEntry(1, 1))
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT
    broker.network.recover()
    # A producer with the same id takes over, as the next try of a batch does.
    after = Producer({**settings, "transactional.id": name}, logger=CLIENT_LOG)
    after.init_transactions(60)
    after.begin_transaction()
    ledger.write(after, StoredEntry(1, 1))
    after.commit_transaction(60)
    assert ledger.read() == StoredEntry(1, 1)
