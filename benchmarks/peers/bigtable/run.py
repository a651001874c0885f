"""Google's Java client and Beam's Java connector against the emulator: do they read every written value?

    python benchmarks/peers/bigtable/run.py [--writes 5000] [--seed 1] [--patience 120] [--only NAME]

Needs Maven, a JDK of 17 or newer and Maven Central. Each reader runs in its own JVM against its own emulator, in two
ways:

- *slow*: 20 layout changes, each one when every partition is being read again (or after five seconds);
- *churn*: 16 random changes per second during the writes.

The result tells how many of the written values arrived, whether the values of each key arrived once and in order, and
whether the reader's last value of each key equals the table's value. A reader that lacks values after `--patience`
seconds is stopped. The figures go to docs/evidence/bigtable-peers.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from penstock_emulators.bigtable import BigtableEmulator, Control  # noqa: E402
from penstock_emulators.bigtable.layout import Layout, random_change  # noqa: E402
from tests.integration.emulators.bigtable.client import INSTANCE, Client, now_us, set_cell  # noqa: E402

_, PROJECT, _, INSTANCE_ID = INSTANCE.split("/")
KEYS = 200
CHANGES = 20
FASTEST = 16
"""Layout changes a second under churn."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one reader got of the values that were written, and how the run went."""

    reader: str
    layouts: str
    written: int
    arrived: int
    repeated: int
    out_of_order_keys: int
    equal_to_table: bool
    layout_changes: int
    streams_open_at_the_end: int
    partitions_at_the_end: int
    seconds_of_writing: float
    seconds_until_complete: float | None


class Reader:
    """A JVM that prints a line for each cell that was set."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._log = log
        self.seen: list[tuple[str, int]] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            key, value, _ = line.rstrip("\n").split("\t")
            self.seen.append((key, int(value)))

    def require_alive(self) -> None:
        """Raise RuntimeError if the JVM has ended: then it proves nothing."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the reader ended without a request; see {self._log}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()


def built() -> str:
    """Compile the Java programs and return their class path."""
    here = Path(__file__).resolve().parent
    with tempfile.NamedTemporaryFile("r") as path:
        goals = ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={path.name}"]
        subprocess.run(["mvn", "-q", "-B", *goals], cwd=here, check=True)
        return f"{here / 'target' / 'classes'}:{path.read()}"


def commands(classes: str, host: str, table: str, start_us: int) -> dict[str, list[str]]:
    java = ["java", "-Xmx1g", "-cp", classes]
    google = [*java, "peers.GoogleClient", PROJECT, INSTANCE_ID, table, str(start_us)]
    return {
        "google-client": [*google, "follow"],
        "google-client-reopening": [*google, "reopen"],
        "beam-connector": [*java, "peers.BeamConnector", host, PROJECT, INSTANCE_ID, table, str(start_us)],
    }


def measure(name: str, layouts: str, arguments: argparse.Namespace, classes: str) -> Outcome:
    log = Path(tempfile.gettempdir()) / f"bigtable-peers-{name}-{layouts}.log"
    with BigtableEmulator.start() as emulator:
        client, control = Client(emulator.host, "peers"), emulator.control
        client.create(splits=[b"%04d" % (KEYS // 2)])
        command = commands(classes, emulator.host, "peers", now_us())[name]
        reader = Reader(command, emulator.environment(), log)
        try:
            return _measured(name, layouts, arguments, client, control, reader)
        finally:
            reader.stop()
            client.close()


def _measured(
    name: str,
    layouts: str,
    arguments: argparse.Namespace,
    client: Client,
    control: Control,
    reader: Reader,
) -> Outcome:
    settle(client, control, seconds=60)
    reader.require_alive()
    rng = random.Random(arguments.seed)
    if layouts == "churn":
        control.churn(1 / FASTEST, seed=arguments.seed, table=client.table)
    begun = time.monotonic()
    for number in range(arguments.writes):
        client.write(b"%04d" % rng.randrange(KEYS), set_cell("f", b"q", b"%d" % number, 0))
        if layouts == "churn":
            time.sleep(0.004)
        elif number % (arguments.writes // CHANGES) == arguments.writes // CHANGES // 2:
            change(client, control, rng)
    written_after = time.monotonic() - begun
    changes = control.statistics(client.table)["layout_changes"]
    complete = wait(reader, arguments, begun)
    return judged(name, layouts, arguments, client, control, reader, changes, written_after, complete)


def change(client: Client, control: Control, rng: random.Random) -> None:
    layout = Layout.whole().with_boundaries(start for start, _ in control.layout(client.table) if start)
    keys = [b"%04d" % rng.randrange(1, KEYS) for _ in range(5)]
    control.set_layout(client.table, random_change(layout, rng, keys, most=6).boundaries)
    settle(client, control, seconds=5)


def settle(client: Client, control: Control, seconds: float) -> None:
    """Wait until every partition is being read, or for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        read = {(stream["start"], stream["end"]) for stream in control.streams(client.table)}
        if read == set(control.layout(client.table)):
            return
        time.sleep(0.05)


def wait(reader: Reader, arguments: argparse.Namespace, begun: float) -> float | None:
    """Return when everything had arrived, or None if patience ends first. Under churn, the churn continues."""
    deadline = time.monotonic() + arguments.patience
    while time.monotonic() < deadline:
        if len({value for _, value in reader.seen}) == arguments.writes:
            return round(time.monotonic() - begun, 1)
        reader.require_alive()
        time.sleep(0.1)
    return None


def judged(
    name: str,
    layouts: str,
    arguments: argparse.Namespace,
    client: Client,
    control: Control,
    reader: Reader,
    changes: int,
    written_after: float,
    complete: float | None,
) -> Outcome:
    seen = list(reader.seen)
    by_key: dict[str, list[int]] = {}
    for key, value in seen:
        by_key.setdefault(key, []).append(value)
    table = {key.decode(): int(value) for key, cells in client.cells().items() for value in cells.values()}
    values = {value for _, value in seen}
    return Outcome(
        name,
        layouts,
        arguments.writes,
        len(values),
        len(seen) - len(values),
        sum(numbers != sorted(numbers) for numbers in by_key.values()),
        {key: numbers[-1] for key, numbers in by_key.items()} == table,
        changes,
        len(control.streams(client.table)),
        len(control.layout(client.table)),
        round(written_after, 1),
        complete,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--writes", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=120)
    parser.add_argument("--only", help="one of the readers")
    arguments = parser.parse_args()
    classes = built()
    for name in ("google-client", "google-client-reopening", "beam-connector"):
        for layouts in ("slow", "churn"):
            if arguments.only in (None, name):
                outcome = asdict(measure(name, layouts, arguments, classes))
                print(json.dumps(outcome), flush=True)
                record(arguments, outcome)


def record(arguments: argparse.Namespace, outcome: dict[str, object]) -> None:
    """Write the evidence; other runs keep what is known of them, with their commit and seed."""
    path = ROOT / "docs" / "evidence" / "bigtable-peers.json"
    before = json.loads(path.read_text())["figures"]["runs"] if path.exists() else []
    head = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    stamp = {
        "commit": head.stdout.strip(),
        "seed": arguments.seed,
        "recorded": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    run = {**outcome, **stamp, "patience_seconds": arguments.patience}
    others = [other for other in before if _which(other) != _which(run)]
    facts = {**stamp, "figures": {"runs": sorted([*others, run], key=_which)}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")


def _which(run: dict[str, object]) -> tuple[str, str]:
    return str(run["reader"]), str(run["layouts"])


if __name__ == "__main__":
    main()
