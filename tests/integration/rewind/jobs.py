"""Jobs from the simulated Spanner to a Delta or an Iceberg table, which go back."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from penstock.cli import rewind as command
from penstock.compat import UTC
from penstock.runner import RemoteJob
from penstock.timestamps import EPOCH
from penstock_emulators.oracle.kill import python
from tests.integration.verify.jobs import job_file, running
from tests.support.catalogs import catalog_in
from tests.support.waiting import wait_until

NAMES = ("my-project", "main", "shop")
ROWS, CHANGED = 100, 10
"""Rows of the table, and how many of them get other values."""


class KilledError(Exception):
    """Raised in place of a kill."""


class RewoundJob:
    """A job whose tables say each half second until when they are complete. `sink`: delta or iceberg."""

    def __init__(self, folder: Path, sink: str, spanner: Any, **parameters: Any) -> None:
        self._folder, self._sink, self._spanner = folder, sink, spanner
        names = dict(zip(("project", "instance", "database"), NAMES, strict=True))
        self._catalog = catalog_in(folder)
        tables: dict[str, Any] = {"uri": f"{folder}/lake/{{table}}"}
        if sink == "iceberg":
            tables = {"target_table": "shop.{table}", "catalog": "lake", "catalog_properties": self._catalog}
        marks = {"mark_complete": True, "mark_complete_seconds": 0.5}
        self._parameters = {**names, "change_stream": "All", **tables, **marks, **parameters}
        self.file = self._write_file()

    def _write_file(self, **changed: Any) -> Path:
        return job_file(self._folder, f"spanner-to-{self._sink}", **self._parameters, **changed)

    @contextmanager
    def running(self, **changed: Any) -> Iterator[None]:
        """Run the job in the block, with changed parameters, and kill it at its end."""
        with running(self._write_file(**changed)):
            yield
        self._write_file()

    def write(self, *notes: str) -> None:
        """Give some rows these notes, one after the other."""
        for note in notes:
            with self._spanner.batch() as batch:
                batch.insert_or_update("Orders", ("Id", "Note"), [(key, note) for key in range(CHANGED)])

    def delete(self, key: int) -> None:
        """Delete a row of the source."""
        from google.cloud.spanner import KeySet

        with self._spanner.batch() as batch:
            batch.delete("Orders", KeySet([[key]]))

    def wait(self) -> None:
        """Wait until the target has everything that was written before."""
        remote = RemoteJob.open(f"{self._folder}/checkpoint")
        assert remote.wait_until_complete(datetime.now(UTC), seconds=120)

    def time_of_a_mark(self) -> datetime:
        """Wait until the table says that it has everything that was written before; return the present time."""
        now = datetime.now(UTC)
        self.wait()  # there is no table before
        wait_until(lambda: (times := self.complete()) and min(times.values()) >= now)
        return datetime.now(UTC)

    def complete(self) -> dict[str, datetime]:
        """Return until when the table says that it is complete."""
        from penstock.io.delta import complete_until as of_delta
        from penstock.io.iceberg import complete_until as of_iceberg

        if self._sink == "delta":
            return of_delta(f"{self._folder}/lake/Orders")
        return of_iceberg("shop.Orders", catalog="lake", catalog_properties=self._catalog)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table."""
        if self._sink == "delta":
            # A query, because it reads deletion vectors.
            table = DeltaTable(f"{self._folder}/lake/Orders")
            found = QueryBuilder().register("t", table).execute("select * from t").read_all()
            return list(pa.table(found).to_pylist())
        from pyiceberg.catalog import load_catalog

        table = load_catalog("lake", **self._catalog).load_table("shop.Orders")
        return list(table.scan().to_arrow().to_pylist())

    def changes(self) -> Counter[tuple[str, int]]:
        """Return the changes that a log has: version and key. The rows of a snapshot have one version."""
        return Counter((row["metadata"]["version"], row["key"]["Id"]) for row in self.rows())

    def rewind(self, to: datetime) -> None:
        """Put the job back."""
        self._planned(to).perform()

    def rewind_killed_after(self, step: str, to: datetime) -> None:
        """Put the job back, and kill the command after a step."""

        def crash(reached: str) -> None:
            if reached == step:
                raise KilledError

        with pytest.raises(KilledError):
            self._planned(to).perform(crash)

    def killed_rewind(self, moment: str, place: object, to: datetime) -> bool:
        """Put the job back in a process that kills itself; return whether it did. See `killed_command`."""
        time = to.isoformat().replace("+00:00", "Z")
        module = "tests.integration.rewind.killed_command"
        words = [*python(module, moment, str(place), "rewind", str(self.file)), "--to", time]
        below = {"KILLED_BELOW": f"{self._folder}/checkpoint"}
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **below})
        assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
        return done.returncode != 0

    def _planned(self, to: datetime) -> Any:
        return command._planned(str(self.file), (), (to - EPOCH) // EPOCH.resolution)

    def command(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the job in a process."""
        words = [*python("penstock.cli.main", name, str(self.file)), *options]
        return subprocess.run(words, capture_output=True, text=True)
