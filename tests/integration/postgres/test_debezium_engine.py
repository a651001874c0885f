"""Debezium's engine beside ours on a live server: the golden comparison with new records."""

from __future__ import annotations

import pytest

from tests.golden.postgres import record, test_debezium
from tests.integration.postgres.debezium_engine import VERSION, record_history

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


def test_records_equal_those_of_a_running_debezium_engine(server, tmp_path, monkeypatch, campaign):
    records, log = record_history(server)
    monkeypatch.setattr(record, "HERE", tmp_path)
    monkeypatch.setattr(test_debezium, "HERE", tmp_path)
    record.write("log", log)
    for name, found in records.items():
        record.write(name, record.packed(found))
    test_debezium.events.cache_clear()
    try:
        for name in test_debezium.OPTIONS:
            test_debezium.test_records_equal_those_of_debezium_field_by_field_in_every_mode(name)
    finally:
        test_debezium.events.cache_clear()
    campaign.record(
        f"debezium-{server.version}",
        engine=VERSION,
        records={name: len(found) for name, found in records.items()},
    )
