"""What the daemon of the workers imports for a pipeline before it forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from penstock.runner.daemon import import_for_workers
from penstock.templates import template_named

import_for_workers([*template_named("postgres-to-kafka").modules, "penstock.nowhere.read"])
clients = {name for name in sys.modules if name.startswith("penstock.io.") and name.endswith((".client", ".sender"))}
print(*sorted(clients))
print(*sorted({"google.cloud.spanner", "google.cloud.bigtable", "ydb"} & sys.modules.keys()))
"""


@pytest.mark.slow
def test_workers_import_what_talks_to_the_services_of_their_pipeline_and_to_no_other() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["penstock.io.kafka.sender penstock.io.postgres.client", ""]
