"""A transaction of a million rows is read in flat memory, in every way of reading, and so are very large rows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle import kill
from penstock_emulators.oracle.lines import read_lines
from tests.integration.postgres.conftest import VERSIONS, Database
from tests.integration.postgres.test_kills import command, command_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.campaign,
    pytest.mark.parametrize("server", VERSIONS[-1:], indirect=True, scope="session"),
]

ROOT = Path(__file__).resolve().parents[3]
MAX_MIB = 40
"""How much more memory a large transaction may need than small ones with the same rows. Its rows have 400 MiB."""
ROWS = 1_000_000
SMALL_ROWS = 50_000
"""Rows that are read before, in transactions of 1,000: the buffer of the reader is full by then."""
SECONDS = 1800
"""How long a reader may need."""

WAYS: dict[str, dict[str, str]] = {
    "stream": {},
    "stream-streaming": {"streaming": "on"},
    "pull": {"protocol": "pull"},
}

READ = """
import json, resource, sys
from penstock.io.postgres import ReadFromPostgresChangeStream
from tests.support.epochs import Epochs

class Checked(list):
    # Records are checked and dropped, as a sink drops them after each bundle.
    count, before = 0, None
    def __iadd__(self, records):
        for record in records:
            begins = self.before is None or self.before.last
            assert record.sequence == (1 if begins else self.before.sequence + 1), "a gap, or another order"
            self.before = record
        self.count += len(records)
        return self

given = json.loads(sys.argv[1])
epochs = Epochs(ReadFromPostgresChangeStream(buffer_bytes=8 << 20, **given["source"]))
epochs.committed = checked = Checked()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
while checked.count < given["small"]:
    epochs.run(2, steps=given["steps"])
before, parts, crashed = peak(), 0, False
while checked.count < given["small"] + given["rows"]:
    # An epoch ends after some steps, inside of the transaction. One is lost, and its residual is read again.
    crash = not crashed and checked.count > given["small"] + given["rows"] // 3
    epochs.run(2, steps=given["steps"], crash=crash)
    crashed, parts = crashed or crash, parts + 1
print(json.dumps({"before": before, "peak": peak(), "rows": checked.count, "parts": parts, "crashed": crashed}))
"""


def read_in_process(database: Database, rows: int, *, steps: int, **options: str) -> dict[str, Any]:
    """Read small transactions and a large one in a process of its own; return its memory before and at most, in MiB."""
    source = {"dsn": database.dsn, "publication": "changes", "slot": database.slot, **options}
    given = {"source": source, "rows": rows, "small": SMALL_ROWS, "steps": steps}
    answer = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(given)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=SECONDS,
    )
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    print(f"{options}: {found['before']:.0f} MiB before, {found['peak']:.0f} MiB at most")
    assert found["rows"] == SMALL_ROWS + rows
    assert found["crashed"]
    return found


def write_small_transactions(database: Database) -> None:
    database.execute("create table t (id int primary key, v text)")
    database.publish()
    for first in range(1, SMALL_ROWS, 1000):
        database.execute(
            f"insert into t select -i, repeat('x', 400) from generate_series({first}, {first + 999}) i"
        )


def write_large_transaction(database: Database) -> None:
    database.execute(f"insert into t select i, repeat('x', 400) from generate_series(1, {ROWS}) i")


@pytest.mark.parametrize("way", WAYS)
def test_a_transaction_of_a_million_rows_needs_flat_memory(
    database: Database, way: str, campaign: Any
) -> None:
    write_small_transactions(database)
    write_large_transaction(database)
    found = read_in_process(database, ROWS, steps=500, **WAYS[way])
    assert found["parts"] > 50
    assert found["peak"] - found["before"] < MAX_MIB
    campaign.record(
        f"postgres-memory-{way}",
        rows=ROWS,
        parts=found["parts"],
        before_mib=round(found["before"]),
        peak_mib=round(found["peak"]),
    )


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_megabyte_are_read_a_few_at_a_time(database: Database, way: str) -> None:
    write_small_transactions(database)
    database.execute("alter table t alter v set storage external")
    database.execute("insert into t select i, repeat('x', 1000000) from generate_series(1, 400) i")
    found = read_in_process(database, 400, steps=1, **WAYS[way])
    assert found["peak"] - found["before"] < MAX_MIB


@pytest.mark.spark
@pytest.mark.parametrize("way", WAYS)
def test_a_pipeline_needs_no_more_memory_for_a_large_transaction(
    database: Database, tmp_path: Path, way: str, campaign: Any
) -> None:
    write_small_transactions(database)
    before = most_mib_of_workers(database, tmp_path / "small", WAYS[way])
    write_large_transaction(database)
    peak = most_mib_of_workers(database, tmp_path / "large", WAYS[way])
    print(f"{way}: {before:.0f} MiB for small transactions, {peak:.0f} MiB for a large one")
    places = [line.content["sequence"] for line in read_lines(tmp_path / "large" / "out")]
    # The last small transactions are read again, because a slot is confirmed when the next bundle begins.
    assert sorted(places)[-(ROWS - 1000) :] == list(range(1001, ROWS + 1))
    assert peak - before < MAX_MIB
    campaign.record(
        f"postgres-memory-pipeline-{way}", rows=ROWS, before_mib=round(before), peak_mib=round(peak)
    )


def most_mib_of_workers(database: Database, folder: Path, options: dict[str, str]) -> float:
    """Run the pipeline up to now; return the most memory that one of its Python workers had, in MiB."""
    folder.mkdir()
    sets = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    end = datetime.now(timezone.utc).timestamp()
    most, deadline = 0.0, time.monotonic() + SECONDS
    with kill.Run([*command(database, folder, end), *sets], log=folder / "log") as run:
        while run.alive():
            assert time.monotonic() < deadline, f"the pipeline did not end within {SECONDS} s"
            for pid in kill.session_members(run.process.pid):
                if any("daemon" in word for word in command_of(str(pid))):
                    most = max(most, resident_mib(pid))
            time.sleep(0.1)
    assert run.process.returncode == 0, (folder / "log").read_text()[-2000:]
    assert most, "the pipeline had no Python worker"
    return most


def resident_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / (1 << 20)
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0.0
