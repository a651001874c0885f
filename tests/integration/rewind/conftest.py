"""A simulated Spanner with rows, for jobs that go back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock_emulators.simulated_spanner import SimulatedSpanner
from tests.integration.rewind.jobs import NAMES, ROWS

DDL = [
    "CREATE TABLE Orders (Id INT64 NOT NULL, Note STRING(MAX)) PRIMARY KEY (Id)",
    "CREATE CHANGE STREAM All FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')",
]


@pytest.fixture
def spanner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a database with rows. Partitions of its change stream split and merge."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner

    with SimulatedSpanner.start(churn_seconds=15, seed=1) as service:
        service.create_database(*NAMES, DDL)
        for name, value in service.environment().items():
            monkeypatch.setenv(name, value)
        client = spanner.Client(NAMES[0], credentials=AnonymousCredentials(), disable_builtin_metrics=True)
        database = client.instance(NAMES[1]).database(NAMES[2])
        with database.batch() as batch:
            batch.insert("Orders", ("Id", "Note"), [(key, "first") for key in range(ROWS)])
        yield database
