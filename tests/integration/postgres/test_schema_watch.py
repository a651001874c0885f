"""DDL of a real server is told once, when it is noticed, also if it ran while the pipeline was stopped."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.io.postgres import schema_watch
from tests.support.epochs import Epochs

pytestmark = pytest.mark.slow


@pytest.fixture
def told(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Look at each step, and return what was told since the last call."""
    monkeypatch.setattr(schema_watch, "LOOK_SECONDS", 0.0)
    caplog.set_level(logging.WARNING, "penstock.io.postgres.stream")

    def texts() -> list[str]:
        found = list(caplog.messages)
        caplog.clear()
        return found

    return texts


def test_each_ddl_is_told_once_with_the_command_that_repairs_it(
    database: Any, told: Any, tmp_path: Any
) -> None:
    database.execute(
        "create table orders (id int primary key, note text)",
        "create table customers (id int primary key, email text)",
        "create table unread (id int primary key)",
    )
    database.publish("for table orders, customers, unread")
    folder = tmp_path / "signals"
    folder.mkdir()
    tables = ["orders", "customers", "refund*"]
    source = database.source(
        heartbeat_seconds=0.05, signal_folder=str(folder), tables=tables, idle_stream_seconds=0
    )
    epochs = Epochs(source)
    epochs.run_until(database.clock())
    assert told() == []

    def after(*statements: str) -> list[str]:
        database.execute(*statements)
        for _ in range(2):  # it is told once
            epochs.run_until(database.clock())
        return told()

    again = f"run: penstock snapshot {folder} --table public."
    (text,) = after("alter table orders add column channel text default 'web'")
    assert text.startswith("public.orders has the new column channel: ")
    assert text.endswith(f"{again}orders")
    (text,) = after(
        "alter table orders add column token uuid default gen_random_uuid()"
    )  # rewrites the table
    assert "new column token" in text
    assert (
        after("alter table orders add column plain int", "alter table unread add column x int default 1")
        == []
    )
    (text,) = after("alter table customers rename email to mail")
    assert text.startswith("public.customers: the column email is called mail now. ")
    (text,) = after("alter table orders drop column note")
    assert text.startswith("public.orders: the column note was dropped")
    assert after("alter table orders alter column plain type bigint") == []
    # While the pipeline is stopped:
    database.wait_for_free_slot()
    texts = after(
        "create table refunds (id int primary key)",
        "insert into refunds values (1)",
        "alter publication changes add table refunds",
        "alter publication changes drop table customers",
    )
    assert sorted(text[:32] for text in texts) == [
        "public.customers left the public",
        "public.refunds joined the public",
    ]
    assert texts[0].endswith(f"{again}refunds")


def test_tables_and_partitions_that_are_created_under_a_publication_lack_nothing(
    database: Any, told: Any
) -> None:
    database.execute(
        "create table events (id int, day int, primary key (id, day)) partition by list (day)",
        "create table day1 partition of events for values in (1)",
        "create table filled (id int, day int, primary key (id, day))",
        "insert into filled values (1, 3)",
    )
    database.publish("for table events")
    epochs = Epochs(database.source(heartbeat_seconds=0.05))
    epochs.run_until(database.clock())
    database.execute("create table day2 partition of events for values in (2)", "drop table day1")
    epochs.run_until(database.clock())
    epochs.run_until(database.clock())
    assert told() == []
    database.execute("alter table events attach partition filled for values in (3)")
    epochs.run_until(database.clock())
    epochs.run_until(database.clock())
    (text,) = told()
    assert text.startswith("public.filled joined the publication changes: ")
