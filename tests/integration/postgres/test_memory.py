"""A transaction of a million rows is read in flat memory, streamed while it runs and sent after its commit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.campaign]

ROOT = Path(__file__).resolve().parents[3]
MOST_MIB = 100
"""How much the memory of the reading process may grow. The rows themselves are four times as large as that."""

READ = """
import json, resource, sys
from penstock.io.postgres import ReadFromPostgresChangeStream
from tests.epochs import Epochs

class Counted(list):
    # Records are counted and dropped, as a sink drops them after each bundle.
    count = 0
    def __iadd__(self, records):
        self.count += len(records)
        return self

given = json.loads(sys.argv[1])
epochs = Epochs(ReadFromPostgresChangeStream(buffer_bytes=8 << 20, **given["source"]))
epochs.committed = Counted()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
epochs.run(0.5, steps=50)
before = peak()
while epochs.committed.count < given["rows"]:
    epochs.run(60, steps=1_000)
print(json.dumps({"before": before, "peak": peak(), "rows": epochs.committed.count}))
"""


@pytest.mark.parametrize("streaming", ["off", "on"])
def test_a_transaction_of_a_million_rows_needs_flat_memory(
    database: Any, streaming: str, campaign: Any
) -> None:
    rows = 1_000_000
    database.execute("create table t (id int primary key, v text)")
    database.publish()
    database.execute(f"insert into t select i, repeat('x', 400) from generate_series(1, {rows}) i")
    source = {"dsn": database.dsn, "publication": "changes", "slot": database.slot, "streaming": streaming}
    answer = subprocess.run(
        [sys.executable, "-c", READ, json.dumps({"source": source, "rows": rows})],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    print(f"streaming={streaming}: {found['before']:.0f} MiB before, {found['peak']:.0f} MiB at most")
    assert found["rows"] == rows
    assert found["peak"] - found["before"] < MOST_MIB
    campaign.record(
        f"postgres-memory-streaming-{streaming}",
        rows=rows,
        before_mib=round(found["before"]),
        peak_mib=round(found["peak"]),
    )
