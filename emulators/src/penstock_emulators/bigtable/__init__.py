"""A local Bigtable with change streams: a front for Google's own emulator, which has none.

    with BigtableEmulator.start(churn_seconds=0.5, seed=7) as emulator:
        subprocess.run(program, env={**os.environ, **emulator.environment()})
        emulator.control.split("projects/p/instances/i/tables/t", b"m")

Ordinary clients in any language reach it through BIGTABLE_EMULATOR_HOST, for data, administration and change
streams. `python -m penstock_emulators.bigtable --port 8086` starts it by hand. Everything is in memory.

**Mirrored**, from the service's documentation (the change streams overview and the API's proto comments):

- every way to write: MutateRow; MutateRows (only entries that were applied); CheckAndMutateRow (the branch that
  the predicate chose); ReadModifyWriteRow (as SetCell of the result); DropRowRange by prefix and of the whole
  table; DeleteFromRow as DeleteFromFamily of the families that hold data in that row, and no record at all for
  a row without data. Server-assigned timestamps appear resolved. Schema changes make no records;
- a row's mutations are applied together or not at all, which Google's emulator does not promise;
- `change_stream_config` on CreateTable, GetTable and UpdateTable (retention of 1 to 7 days); switching the
  stream off deletes its records, and older tokens are refused after it is switched on again, or after
  the table is recreated;
- app profiles (create, get, list, update, delete): a write takes the cluster of its profile as its
  `source_cluster_id`, and only a single-cluster profile can read a change stream;
- partitions that split, merge, cross and move; CloseStream with OUT_OF_RANGE, one continuation token and one
  new partition for each part; tokens of unequal positions merge, without state in the server;
- values above 1 MiB in chunks; `token`, `done`, heartbeats (5 s unless asked otherwise), estimated low
  watermarks, inclusive `start_time` and `end_time`, the closing OK at `end_time`, records of garbage collection;
- the documented errors: FAILED_PRECONDITION (stream off), INVALID_ARGUMENT (tokens that do not cover the
  partition, of another table, or multi-cluster profile; `start_time` in the future), OUT_OF_RANGE (older than
  the retention or than the stream), NOT_FOUND (no such table or profile).

**Left out, or different**: garbage collection runs only when the control service asks for it; a
ReadModifyWriteRow whose second rule fails keeps the change of its first rule; clusters have no replication between
them, so watermarks are only as late as the control service makes them; instances, clusters, backups, views and
SQL are left to Google's emulator (UNIMPLEMENTED); no authentication, and loopback only.
"""

from __future__ import annotations

from penstock_emulators.bigtable.control import Control
from penstock_emulators.bigtable.faults import Fault
from penstock_emulators.bigtable.google import find_binary
from penstock_emulators.bigtable.process import BigtableEmulator
from penstock_emulators.gcloud import EmulatorNotFoundError
from penstock_emulators.server_process import EmulatorStartError

__all__ = [
    "BigtableEmulator",
    "Control",
    "EmulatorNotFoundError",
    "EmulatorStartError",
    "Fault",
    "find_binary",
]
