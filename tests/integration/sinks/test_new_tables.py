"""`penstock run postgres-to-delta`, while tables with rows join the publication and one leaves it, with kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle.kill import After, kill_at
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.integration.sinks.test_parked_tables import Lake, Shop, Writers
from tests.support.waiting import PATIENCE_SECONDS, wait_for_run

# `tests/integration/postgres/test_new_tables.py` shows the same without Spark in each run.
pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=60), pytest.mark.campaign]


def test_rows_of_tables_that_join_are_in_the_target_once_and_the_others_go_on(
    tmp_path: Path, campaign: Any
) -> None:
    with PostgresServer.start(version=VERSIONS[-1]) as server:
        database = Database(server)
        shop = Shop(
            tmp_path,
            database,
            2,
            Lake(tmp_path, server),
            "for table t0, t1",
            new_tables="snapshot",
            chunk_rows="100",
        )
        run = shop.start()
        try:
            with Writers(database.dsn, 2, pause=0.2):
                wait_for_run(run, lambda: bool(shop.copied("t0")), "nothing arrives", shop.log)
                for name in ("t2", "t3"):
                    database.execute(
                        f"create table {name} (id int primary key, v int)",
                        f"insert into {name} select n, n from generate_series(100, 4000) n",
                        f"alter publication changes add table {name}",
                    )
                # A reader looks at its start, and then every minute.
                run.kill()
                run = shop.start()
                wait_for_run(run, lambda: bool(shop.copied("t2")), "no row is read", shop.log)
                moment = After(campaign.random("new tables").random())
                kill_at(run, moment, "in the snapshot", PATIENCE_SECONDS)
                shop.tables = 4
                run = shop.start()
                with Writers(database.dsn, 4, pause=0.2):
                    wait_for_run(run, lambda: len(shop.copied("t3")) > 3000, "rows are missing", shop.log)
            wait_for_run(run, shop.is_equal, "the tables are not equal", shop.log)
            run.kill()
            database.execute("drop table t3", "insert into t0 values (-1, 7)")
            shop.tables = 3
            run = shop.start()
            wait_for_run(run, shop.is_equal, "the tables are not equal", shop.log)
            wait_for_run(run, lambda: "public.t3 left" in shop.log.read_text(), "nothing is told", shop.log)
        finally:
            run.kill()
