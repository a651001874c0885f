"""The process that writes: transfers and orders in threads, until standard input ends.

    python -m benchmarks.demo.writers PROJECT INSTANCE DATABASE SEED MODS

It changes at least MODS rows. At the end it prints one JSON line: the numbers of committed transactions and of changed
rows. If the parent process dies, standard input ends, and so does this process.

The emulator runs one read-write transaction at a time, and it needs the same lock to split and merge partitions. So the
threads take turns and pause for a moment after each transaction.
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
"""The rate. The emulator scans everything that it holds for every query, so a faster bank would overload it."""


def connect(project: str, instance: str, database: str) -> Any:
    """Return an ordinary client's database; SPANNER_EMULATOR_HOST says where it is."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner

    client = spanner.Client(project=project, credentials=AnonymousCredentials(), disable_builtin_metrics=True)
    return client.instance(instance).database(database)


@dataclass
class Tally:
    """Counts of commits. `failure` is the first error of any thread; it ends all of them."""

    transactions: int = 0
    mods: int = 0
    failure: BaseException | None = None
    begun: float = field(default_factory=time.monotonic)
    turn: threading.Lock = field(default_factory=threading.Lock)
    end: threading.Event = field(default_factory=threading.Event)

    def repeat(self, commit: Callable[[], int]) -> None:
        """Commit repeatedly. `commit` returns the number of rows that it changed."""
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
