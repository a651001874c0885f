"""What the sink says about brokers that refuse it, and how it looks for topics."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from penstock.io.kafka import sender as sender_module
from penstock.io.kafka.errors import KafkaTargetError, unreachable_broker
from penstock.io.kafka.target import KafkaTarget
from penstock.io.kafka.write import connector_of
from penstock.io.staging import TargetUnavailableError

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36


def answer(api: int, version: int) -> bytes:
    """Return the answer of a broker that accepts no password. Source: Kafka protocol guide."""
    if api == API_VERSIONS:
        apis = [(3, 0, 5), (SASL_HANDSHAKE, 0, 1), (API_VERSIONS, 0, 0), (SASL_AUTHENTICATE, 0, 1)]
        known = b"".join(struct.pack(">hhh", *each) for each in apis)
        # 35: UNSUPPORTED_VERSION; the client asks again with version 0.
        return struct.pack(">hi", 35, 0) if version else struct.pack(">hi", 0, len(apis)) + known
    if api == SASL_HANDSHAKE:
        return struct.pack(">hih5s", 0, 1, 5, b"PLAIN")
    # 58: SASL_AUTHENTICATION_FAILED
    return struct.pack(">hh6si", 58, 6, b"denied", 0) + (struct.pack(">q", 0) if version else b"")


def serve(connection: socket.socket) -> None:
    with suppress(OSError), connection, connection.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            message = stream.read(*struct.unpack(">i", head))
            api, version, correlation = struct.unpack(">hhi", message[:8])
            body = struct.pack(">i", correlation) + answer(api, version)
            connection.sendall(struct.pack(">i", len(body)) + body)


@pytest.fixture
def refusing_broker() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    # Wakes the thread, which `close` alone does not.
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.parametrize("guarantee", ["transactional", "idempotent"])
def test_a_wrong_password_is_named_by_the_check_and_is_no_outage(
    refusing_broker: str, guarantee: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "_METADATA_SECONDS", 0.3)
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    login = {"sasl.username": "u", "sasl.password": "hunter2"}
    target = KafkaTarget(refusing_broker, lambda _: [], guarantee=guarantee, config=config | login)
    with pytest.raises(KafkaTargetError, match=r"did not accept the credentials: check sasl\.\*") as refused:
        connector_of(target).check()
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("guarantee", ["transactional", "idempotent"])
def test_brokers_that_do_not_answer_are_an_outage_that_is_told_once(
    guarantee: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sender_module, "_METADATA_SECONDS", 0.5)
    monkeypatch.setattr(sender_module, "_REQUEST_SECONDS", 0.5)
    with pytest.raises(TargetUnavailableError, match=r"no answer at 127\.0\.0\.1:1: connection refused$"):
        connector_of(KafkaTarget("127.0.0.1:1", lambda _: [], guarantee=guarantee)).check()
    assert [record.getMessage() for record in caplog.records if record.name.endswith("librdkafka")] == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "b:1/bootstrap: Connect to ipv4#10.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
            "no answer at b:1: connection refused",
        ),
        (
            "b:1/bootstrap: Failed to resolve 'b:1': Name or service not known (after 5ms in state CONNECT)",
            "no answer at b:1: name or service not known",
        ),
        ("2/2 brokers are down", None),
    ],
)
def test_an_error_of_a_connection_names_the_broker_and_the_reason(text: str, told: str | None) -> None:
    assert unreachable_broker(KafkaError(KafkaError._TRANSPORT, text)) == told


class Brokers:
    """Stands for an AdminClient. Its brokers create a topic that a client asks for by name, as is their default."""

    def __init__(self, *topics: str) -> None:
        self.topics = {name: SimpleNamespace(error=None) for name in topics}

    def list_topics(self, topic: str | None = None, timeout: float = 0) -> Any:
        if topic is not None:
            self.topics[topic] = SimpleNamespace(error=None)
        return SimpleNamespace(topics=self.topics)


def test_to_look_for_a_topic_does_not_create_it(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers("orders")
    monkeypatch.setattr(sender_module, "AdminClient", lambda *_, **__: brokers)
    given: dict[str, Any] = {"guarantee": "idempotent", "create_topics": False}
    connector_of(KafkaTarget("b:1", lambda _: [], topic="orders", **given)).check()
    with pytest.raises(KafkaTargetError, match="a topic does not exist"):
        connector_of(KafkaTarget("b:1", lambda _: [], topic="payments", **given)).check()
    assert set(brokers.topics) == {"orders"}
