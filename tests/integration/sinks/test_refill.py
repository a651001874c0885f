"""`penstock tables … refill` of a job on Spark: the table is emptied, and its rows are read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.launch.run import ExitCode
from penstock_emulators.postgres import PostgresServer
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.integration.sinks.test_parked_tables import BAD, Copy, Lake, Shop
from tests.support.waiting import wait_for_run

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=30)]

ROWS = 50


@pytest.mark.long_cases("Copy", seconds=10)
@pytest.mark.parametrize("target", [Lake, Copy])
def test_a_refilled_table_has_the_rows_of_its_source(target: type[Lake | Copy], tmp_path: Path) -> None:
    with PostgresServer.start(version=VERSIONS[-1]) as server:
        database, signals = Database(server), tmp_path / "signals"
        options = {"on_refused_table": "park", "signal_folder": str(signals)}
        shop = Shop(tmp_path, database, 2, target(tmp_path, server), **options)
        job = tmp_path / "job.yaml"
        job.write_text(
            f"template: {shop.target.template}\nparameters:\n  signal_folder: {signals}\n"
            f"runner:\n  checkpoint_dir: {shop.checkpoint}\n"
        )
        run = shop.start()
        try:
            wait_for_run(run, signals.is_dir, "the job does not start", shop.log)
            for table in ("t0", "t1"):
                database.execute(f"insert into {table} select n, n from generate_series(1, {ROWS}) n")
            wait_for_run(run, lambda: shop.copied("t0") and shop.is_equal(), "nothing arrives", shop.log)
            shop.target.refuse(BAD, database)
            database.execute(f"update {BAD} set v = '7' where id > 40")
            wait_for_run(run, shop.parked, "nothing is parked", shop.log)
            # What a skip would leave in the target.
            database.execute(f"delete from {BAD} where id <= 10", f"update {BAD} set v = '8' where id = 11")
            waiting = f"public.{BAD}"
            wait_for_run(
                run, lambda: shop.parked()[waiting].changes >= 10 + 11, "not all is parked", shop.log
            )
            shop.target.correct(BAD)
            asked = shop.penstock("tables", str(job), "refill", waiting)
            assert asked.returncode == ExitCode.DONE, asked.stdout + asked.stderr
            assert "asked the job to read all rows of public.t0" in asked.stdout
            wait_for_run(run, shop.is_equal, "the tables are not equal", shop.log)
            database.execute(f"update {BAD} set v = '9' where id = 12", f"delete from {BAD} where id = 13")
            wait_for_run(run, shop.is_equal, "later changes do not arrive", shop.log)
        finally:
            run.kill()
