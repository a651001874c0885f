"""What errors of Kafka's client mean for a batch."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from penstock.errors import ServiceError
from penstock.io.kafka.errors import KafkaTargetError, classify_error
from penstock.io.staging.delivery import FencedError, TargetUnavailableError


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._FENCED, FencedError),
        (KafkaError.PRODUCER_FENCED, FencedError),
        (KafkaError.INVALID_PRODUCER_EPOCH, FencedError),
        (KafkaError._TIMED_OUT, TargetUnavailableError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaTargetError),
    ],
)
def test_only_an_outage_is_repeated_at_once(code: int, expected: type[ServiceError]) -> None:
    error = classify_error(KafkaError(code), "Kafka at b:1")
    assert type(error) is expected
    # A fenced driver asks whether it was superseded and then tries the epoch again; a refusal ends the pipeline.
    assert error.retryable is (expected is not KafkaTargetError)
