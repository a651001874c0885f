"""What the sink makes of the answers of Pub/Sub's client. The client is Google's; only its requests are replaced."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher.exceptions import MessageTooLargeError

from penstock.event import Op
from penstock.io.pubsub.target import PubSubTarget
from penstock.io.pubsub.write import connector_of
from penstock.io.staging.delivery import Delivery, RefusalError, TargetUnavailableError
from penstock.transforms.formats.debezium import DebeziumFormat
from tests.support.changing_table import changed_table


class UnavailableClient(pubsub_v1.PublisherClient):
    """Answers every message with UNAVAILABLE."""

    def get_topic(self, **request: Any) -> None: ...

    def publish(self, *message: Any, **attributes: Any) -> Future[str]:
        answer: Future[str] = Future()
        answer.set_exception(exceptions.ServiceUnavailable("down"))
        return answer


def send(client: type, monkeypatch: pytest.MonkeyPatch, *, ordering: bool = True) -> None:
    """Send a batch with a client of this class."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "localhost:1")
    monkeypatch.setattr(pubsub_v1, "PublisherClient", client)
    events = [event for event in changed_table(4, 40, partial=False).events if event.op is not Op.TRUNCATE]
    sender = connector_of(PubSubTarget("project", "orders", DebeziumFormat("shop"), ordering=ordering)).open(
        skip_refused=False
    )
    try:
        sender.send(Delivery("sink", "job", 0, 1, 1, 1), events[:5])
    finally:
        sender.close()


class LimitedClient(UnavailableClient):
    """Publishes the first message and refuses the others."""

    def publish(self, *message: Any, **attributes: Any) -> Future[str]:
        answer: Future[str] = Future()
        answer.set_result("1")
        if hasattr(self, "published"):
            raise MessageTooLargeError
        self.published = True
        return answer


def test_a_refusal_says_that_other_messages_may_be_published(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusalError) as refused:
        send(LimitedClient, monkeypatch)
    assert "publishes them again, with the same penstock_id" in refused.value.batch


@pytest.mark.parametrize("ordering", [True, False])
def test_an_outage_is_reported_as_one(ordering: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetUnavailableError, match="ServiceUnavailable"):
        send(UnavailableClient, monkeypatch, ordering=ordering)
