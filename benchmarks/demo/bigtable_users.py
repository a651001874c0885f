"""A small Bigtable table with a change stream and a few changes, to try `bigtable-to-files` by hand.

    start=$(python -m benchmarks.demo.bigtable_users)

Creates the table `users` on the emulator at BIGTABLE_EMULATOR_HOST (project my-project, instance main), changes three
rows ten times each, and prints the time when the table existed: the start time for the pipeline.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from datetime import datetime

from penstock.compat import UTC
from penstock.extras import MissingExtraError, extra_packages

try:
    with extra_packages("bigtable"):
        import grpc
        from google.cloud.bigtable.data import BigtableDataClient, SetCell
        from google.cloud.bigtable_admin_v2 import BigtableTableAdminClient
        from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports import (
            BigtableTableAdminGrpcTransport,
        )
except MissingExtraError as error:
    sys.exit(f"Error: {error}")

PROJECT, INSTANCE, TABLE = "my-project", "main", "users"


def make_table(host: str) -> None:
    """Create the table, with one family and a change stream with a retention of one day."""
    admin = BigtableTableAdminClient(
        transport=BigtableTableAdminGrpcTransport(channel=grpc.insecure_channel(host))
    )
    table = {
        "column_families": {"profile": {}},
        "change_stream_config": {"retention_period": {"seconds": 86_400}},
    }
    parent = f"projects/{PROJECT}/instances/{INSTANCE}"
    admin.create_table(request={"parent": parent, "table_id": TABLE, "table": table})


def change_rows() -> None:
    """Set two cells of each of three rows, ten times."""
    with BigtableDataClient(project=PROJECT) as client, client.get_table(INSTANCE, TABLE) as table:
        for number in range(10):
            for name in ("ada", "grace", "joan"):
                cells = [
                    SetCell("profile", "name", name.title()),
                    SetCell("profile", "logins", str(number)),
                ]
                table.mutate_row(f"user#{name}", cells)
            time.sleep(0.1)


def main() -> None:
    host = os.environ.get("BIGTABLE_EMULATOR_HOST")
    if not host:
        sys.exit("BIGTABLE_EMULATOR_HOST is not set: start `penstock emulator bigtable` and export it")
    warnings.simplefilter("ignore")
    make_table(host)
    print(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    change_rows()


if __name__ == "__main__":
    main()
