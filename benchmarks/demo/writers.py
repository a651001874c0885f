"""The process that writes: transfers and orders in threads, until standard input ends.

    python -m benchmarks.demo.writers PROJECT INSTANCE DATABASE SEED MODS

changes at least so many rows, and prints one JSON line when it is done: how many transactions it committed
and how many rows they changed. Its parent's death ends it too, since that closes the pipe.

The emulator runs one read-write transaction at a time and needs that same lock to split and merge
partitions. So the threads take turns and leave it alone for a moment after each transaction.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.demo import bank

PAUSE_SECONDS = 0.03
MODS_PER_SECOND = 400
"""The pace: the emulator looks through all that it holds for every query, so a faster bank soon outruns it."""


def connect(project: str, instance: str, database: str) -> Any:
    """Return an ordinary client's database; SPANNER_EMULATOR_HOST says where it is."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner

    client = spanner.Client(project=project, credentials=AnonymousCredentials(), disable_builtin_metrics=True)
    return client.instance(instance).database(database)


@dataclass
class Tally:
    """What was committed; `failure` is the first error of any thread, which ends them all."""

    transactions: int = 0
    mods: int = 0
    failure: BaseException | None = None
    begun: float = field(default_factory=time.monotonic)
    turn: threading.Lock = field(default_factory=threading.Lock)
    end: threading.Event = field(default_factory=threading.Event)

    def repeat(self, commit: Callable[[], int]) -> None:
        """Commit again and again; `commit` returns how many rows it changed."""
        try:
            while not self.end.is_set():
                with self.turn:
                    self.mods += commit()
                    self.transactions += 1
                    ahead = self.mods / MODS_PER_SECOND - (time.monotonic() - self.begun)
                    time.sleep(max(PAUSE_SECONDS, ahead))
        except BaseException as error:
            self.failure = self.failure or error
            self.end.set()


def main(project: str, instance: str, database: str, seed: str, mods: str) -> int:
    """Write until standard input ends and `mods` rows are changed; 1 if a thread failed."""
    client = connect(project, instance, database)
    rng, book = random.Random(f"transfers {seed}"), bank.OrderBook(random.Random(f"orders {seed}"))
    tally = Tally()
    commits = (lambda: bank.transfer(client, rng, 16), lambda: book.trade(client, 20, 12, 10))
    threads = [threading.Thread(target=tally.repeat, args=(commit,)) for commit in commits]
    for thread in threads:
        thread.start()
    while sys.stdin.read(1):
        continue
    while tally.mods < int(mods) and not tally.end.wait(0.1):
        continue
    tally.end.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"transactions": tally.transactions, "mods": tally.mods}), flush=True)
    if tally.failure is not None:
        print(f"a writer failed: {tally.failure!r}", file=sys.stderr)
    return 1 if tally.failure else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
