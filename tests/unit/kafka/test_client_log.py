"""What librdkafka logs, and what of it reaches the log of a pipeline."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import Consumer

from penstock.io.kafka.errors import CLIENT_LOG
from penstock.io.kafka.ledger import reader_settings


@pytest.mark.parametrize(
    ("setting", "logged"),
    [("compression.codec", False), ("delivery.report.only.error", False), ("debug", True)],
)
def test_a_setting_for_producers_is_no_warning_of_the_consumer_that_gets_it_too(
    caplog: pytest.LogCaptureFixture, setting: str, logged: bool
) -> None:
    values = {"compression.codec": "none", "delivery.report.only.error": True, "debug": "conf"}
    settings = {"bootstrap.servers": "127.0.0.1:1", setting: values[setting]}
    consumer = Consumer(reader_settings(settings, "group"), logger=CLIENT_LOG)
    with caplog.at_level(logging.DEBUG, CLIENT_LOG.name):
        consumer.poll(0.2)
    consumer.close()
    assert bool(caplog.records) is logged
