"""Debezium's transaction metadata in topics: the records of its connector, from the same changes, on a real broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_transaction import placed_events
from penstock_emulators.kafka import KafkaBroker
from tests.golden.postgres.test_debezium import OPTIONS, tables, theirs, transactions
from tests.integration.kafka.conftest import Target, header, read_all

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

NAME = "transactions"
TABLES = {"ri_full", "nopk"}


def test_topics_have_the_records_of_the_connector_with_their_places(broker: KafkaBroker) -> None:
    format = DebeziumFormat(NAME, schemas_enable=True, debezium_exact=True, **OPTIONS[NAME])
    target = Target(broker, format=format, partitions=1)
    # Fewer tables than in the whole history: the broker creates a topic for each.
    chosen = [each for each in transactions() if {event.source.table for event in each} <= TABLES]
    events = [event for each in chosen for event in placed_events(format, each)]
    for part in (events[:50], events[50:]):
        target.deliver(part)
    expected, ids = theirs(NAME), {each[0].version.transaction for each in chosen}
    topic = f"{NAME}.transaction"
    framed = [each for each in expected[topic] if each[0]["payload"]["id"].partition(":")[0] in ids]
    wanted = {topic: framed} | {name: expected[name] for name in (f"{NAME}.public.{each}" for each in TABLES)}
    messages = {name: read_all(broker.address, name) for name in wanted}
    found = {name: [decoded(each) for each in those] for name, those in messages.items()}
    assert tables(found) == tables(wanted)
    headers = [header(each, "penstock.id") for each in messages[topic]]
    assert len(set(headers)) == len(headers) == 2 * len(chosen) > 10


def decoded(message: Any) -> list[Any]:
    key, value = message.key(), message.value()
    headers = [[name, json.loads(text)] for name, text in message.headers() if name.startswith("__debezium")]
    return [key and json.loads(key), value and json.loads(value), headers]
