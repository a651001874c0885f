"""An initial snapshot in YDB's format has the guarantees of YDB's initial scan.

Source: YDB documentation, "Change Data Capture", "Initial table scan": the original value of a row comes before each
change of the row, and a row that has changed is not scanned again.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.io.spanner.events import EventConverter
from penstock.transforms.formats.ydb import YdbFormat
from tests.integration.spanner.conftest import DDL
from tests.integration.spanner.test_snapshot import insert
from tests.support.epochs import Epochs

pytestmark = pytest.mark.parametrize("emulator", ["simulated"], indirect=True, scope="session")
ROWS = 300


@pytest.mark.slow
def test_the_original_value_of_each_row_comes_once_and_before_its_changes(
    emulator: Any, new_database: Any
) -> None:
    database = new_database(emulator, [*DDL[:2], DDL[2].replace("OLD_AND_NEW_VALUES", "NEW_ROW")])
    insert(database, "Accounts", dict.fromkeys(range(ROWS), "original"))
    driver = Epochs(database.reading(snapshot="initial", idle_stream_seconds=0), 2)
    number = 0
    while any(hasattr(frontier, "ranges") for frontier, _ in driver.residuals):
        # Rows that are scanned already, and rows that are not, change while the scan runs.
        last = insert(database, "Accounts", dict.fromkeys(range(number, ROWS, 40), f"change {number}"))
        driver.run(0.0, crash=number % 3 == 1)
        number += 1
    driver.run_until(last)
    convert, format_ = EventConverter(), YdbFormat("feed", mode="NEW_IMAGE")
    values: dict[int, list[str]] = {}
    for record in driver.committed:
        for event in convert(record):
            for line in format_(event):
                document = json.loads(line.value)
                values.setdefault(document["key"][0], []).append(document["newImage"]["Value"])
    assert number > 1, "nothing changed during the scan"
    assert sorted(values) == list(range(ROWS))
    for found in values.values():
        assert found[0] == "original"
        assert found.count("original") == 1
    assert any(len(found) > 1 for found in values.values())
