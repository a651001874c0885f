"""What the sink makes of the answers of Pub/Sub's client. The client is Google's; only its requests are replaced."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1

from penstock.event import Op
from penstock.io.pubsub.target import PubSubTarget
from penstock.io.staging.delivery import Delivery, TargetUnavailableError
from penstock.transforms.formats.debezium import DebeziumFormat
from tests.changing_table import changed_table


class UnavailableClient(pubsub_v1.PublisherClient):
    """Answers every message with UNAVAILABLE."""

    def get_topic(self, **request: Any) -> None: ...

    def publish(self, *message: Any, **attributes: Any) -> Future[str]:
        answer: Future[str] = Future()
        answer.set_exception(exceptions.ServiceUnavailable("down"))
        return answer


@pytest.mark.parametrize("ordering", [True, False])
def test_an_outage_is_reported_as_one(ordering: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "localhost:1")
    monkeypatch.setattr(pubsub_v1, "PublisherClient", UnavailableClient)
    target = PubSubTarget("project", "orders", DebeziumFormat("shop"), ordering=ordering)
    events = [event for event in changed_table(4, 40, partial=False).events if event.op is not Op.TRUNCATE]
    sender = target.open(skip_refused=False)
    with pytest.raises(TargetUnavailableError, match="ServiceUnavailable"):
        sender.send(Delivery("sink", "job", 0, 1, 1, 1), events[:5])
    sender.close()
