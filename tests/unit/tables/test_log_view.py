"""The view of current rows over a change log, as the page of the sink of Delta shows it."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
from deltalake import DeltaTable

from penstock.io.delta.target import DeltaTarget
from tests.support.key_histories import KINDS, KeyHistory
from tests.unit.tables.test_delta import publish

PAGE = Path(__file__).parents[3] / "docs" / "sinks" / "delta.md"


def test_the_view_over_a_log_has_the_rows_of_the_source(tmp_path: Path) -> None:
    (view,) = re.findall(r"^create view orders as\n.*?(?=^```)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    target = DeltaTarget(str(tmp_path / "log"), "log", "evolve")
    history = KeyHistory(whole=True)
    for number in range(120):
        kind = KINDS[number * 7 % len(KINDS)]
        history.apply("put" if kind == "clear" and number > 80 else kind, number, number // 3)
    for epoch, start in enumerate(range(0, len(history.events), 40), 2):
        publish(target, history.events[start : start + 40], epoch)
    database = duckdb.connect()
    database.register("orders_log", DeltaTable(tmp_path / "log").to_pyarrow_table())
    found = database.execute(f"{view}; select id, a, big, wide from orders order by id").fetchall()
    assert found == [(key, *row.values()) for key, row in sorted(history.rows.items())]
    assert len(found) > 1
