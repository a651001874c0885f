"""Debezium's engine beside ours on a live server: the golden comparison with new records."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_emulators.postgres import find_programs
from tests.golden.postgres import history, record, test_debezium
from tests.integration.postgres.conftest import VERSIONS
from tests.integration.postgres.debezium_engine import VERSION, record_history

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


def has_contrib(version: int) -> bool:
    """Return whether a server has the extensions that the history needs; wheels without them exist."""
    root = find_programs(version).parent
    folders = [root, Path(f"/usr/share/postgresql/{version}")]
    return any(next(folder.rglob("hstore.control"), None) for folder in folders if folder.is_dir())


@pytest.mark.parametrize("server", list(filter(has_contrib, VERSIONS)), indirect=True, scope="session")
def test_records_equal_those_of_a_running_debezium_engine(server, tmp_path, monkeypatch, campaign):
    records, log = record_history(server)
    monkeypatch.setattr(record, "HERE", tmp_path)
    monkeypatch.setattr(history, "HERE", tmp_path)
    record.write("log", log)
    for name, found in records.items():
        record.write(name, record.packed(found))
    history.forget()
    try:
        for name in test_debezium.OPTIONS:
            test_debezium.test_records_equal_those_of_debezium_field_by_field_in_every_mode(name)
    finally:
        history.forget()
    campaign.record(
        f"debezium-{server.version}",
        engine=VERSION,
        records={name: len(found) for name, found in records.items()},
    )
