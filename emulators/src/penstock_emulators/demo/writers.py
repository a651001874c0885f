"""The process that writes: transfers and orders in threads, until a line on standard input.

    python -m penstock_emulators.demo.writers PROJECT INSTANCE DATABASE SEED MODS RATE

It changes about RATE rows a second, and at least MODS rows. At the end it prints one JSON line: the numbers of
committed transactions and of changed rows. If standard input ends without a line, the parent process has died, and this
process ends at once: the database may be gone, and a client of Spanner would try again to read from it forever.
`writing` starts it.

The emulator runs one read-write transaction at a time, and it needs the same lock to split and merge partitions. So the
threads take turns and pause for a moment after each transaction.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock_emulators.demo import bank
from penstock_emulators.demo.waiting import PATIENCE_SECONDS

PAUSE_SECONDS = 0.03
_FINISH = "finish\n"


@dataclass(frozen=True, slots=True)
class Written:
    """What the writers have committed."""

    transactions: int
    mods: int


@contextmanager
def writing(
    database: tuple[str, str, str], environment: Mapping[str, str], *, seed: int, min_mods: int, rate: int
) -> Iterator[subprocess.Popen[str]]:
    """Run a child process that writes until `finish` is called; leaving the block kills it.

    `database` is project, instance and name. It changes about `rate` rows a second, and at least `min_mods` rows.
    Google's emulator scans everything that it holds for every query, so it takes no more than 400 a second.
    """
    command = [sys.executable, "-m", "penstock_emulators.demo.writers", *database]
    child = subprocess.Popen(
        [*command, str(seed), str(min_mods), str(rate)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def finish(writers: subprocess.Popen[str]) -> Written:
    """Let the writers end, and return what they have written.

    Raises:
        RuntimeError: they have failed; the reason is on their standard error.
    """
    out, _ = writers.communicate(_FINISH, timeout=PATIENCE_SECONDS)
    if writers.returncode != 0:
        raise RuntimeError("the writers failed; see above")
    return Written(**json.loads(out))


def connect(project: str, instance: str, database: str) -> Any:
    """Return an ordinary client's database; SPANNER_EMULATOR_HOST says where it is."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner

    client = spanner.Client(project=project, credentials=AnonymousCredentials(), disable_builtin_metrics=True)
    return client.instance(instance).database(database)


@dataclass
class Tally:
    """Counts of commits. `failure` is the first error of any thread; it ends all of them."""

    rate: int
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
                    ahead = self.mods / self.rate - (time.monotonic() - self.begun)
                    time.sleep(max(PAUSE_SECONDS, ahead))
        except BaseException as error:
            self.failure = self.failure or error
            self.end.set()


def main(project: str, instance: str, database: str, seed: str, mods: str, rate: str) -> int:
    """Write until a line comes on standard input and `mods` rows are changed; 1 if a thread failed."""
    client = connect(project, instance, database)
    rng, book = random.Random(f"transfers {seed}"), bank.OrderBook(random.Random(f"orders {seed}"))
    tally = Tally(int(rate))
    commits = (lambda: bank.transfer(client, rng, 16), lambda: book.trade(client, 20, 12, 10))
    threads = [threading.Thread(target=tally.repeat, args=(commit,)) for commit in commits]
    for thread in threads:
        thread.start()
    if sys.stdin.readline() != _FINISH:
        os._exit(1)
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
