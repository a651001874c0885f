"""What `--epoch-seconds`, `--parallelism` and Spark's slots do to latency and cost, against the defaults.

    python benchmarks/pace.py [--rate 100] [--seconds 5] [--rounds 3] [--within 290]

Each round is one of `latency.py`: the simulated Spanner service, a writer, `penstock run spanner-to-files` with
`roll_seconds=0`, and a watcher of the output. The rounds of all settings take turns, so that a change in the load of
the machine reaches each of them. The peer of a setting is the pipeline with the defaults. No round begins that would
end after `--within` seconds, except the first one of each setting; the table says how many rounds there were. It is the
table in docs/runner.md.
"""

from __future__ import annotations

import argparse
import os
import time

from latency import Round, one_round
from measure import Spread, heading, machine, percentile, ratio, row

from penstock_emulators.simulated_spanner import SimulatedSpanner

DEFAULTS = "the defaults"
SETTLE_SECONDS = 2.0
SETTINGS = {
    DEFAULTS: [],
    "`--epoch-seconds 0.1`": ["--epoch-seconds", "0.1"],
    "`--epoch-seconds 2`": ["--epoch-seconds", "2"],
    "`--parallelism 1`": ["--parallelism", "1"],
    "`--parallelism 4`": ["--parallelism", "4"],
    "four slots (`--master 'local[4,4]'`)": ["--master", "local[4,4]"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=100.0, help="transactions per second")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured seconds per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--within", type=float, default=290.0, help="seconds after which no round begins")
    options = parser.parse_args()
    print(
        f"{machine()}; {options.rate:g} transactions per second, {options.seconds:g} s per round, median "
        f"(lowest to highest); load average {os.getloadavg()[0]:.1f}\n",
        flush=True,
    )
    rounds: dict[str, list[Round]] = {name: [] for name in SETTINGS}
    began, longest = time.monotonic(), 0.0
    for number in range(options.rounds):
        for name, flags in SETTINGS.items():
            before = time.monotonic()
            if number and before - began + longest > options.within:
                break
            rounds[name].append(
                one_round(
                    options.rate,
                    options.seconds,
                    SimulatedSpanner,
                    flags,
                    phases=False,
                    settle_seconds=SETTLE_SECONDS,
                )
            )
            longest = max(longest, time.monotonic() - before)
    columns = ("Rounds", "p50, ms", "p95, ms", "Epochs a second", "CPU, s per second", "p50, ratio")
    print(heading("Setting", *columns))
    for name, of_setting in rounds.items():
        tell(name, of_setting, rounds[DEFAULTS])


def tell(name: str, rounds: list[Round], defaults: list[Round]) -> None:
    """Print the row of a setting."""
    print(
        row(
            name,
            str(len(rounds)),
            latency(rounds, 50).text(0, 1e-3),
            latency(rounds, 95).text(0, 1e-3),
            Spread.of(each.files_per_second for each in rounds).text(1),
            Spread.of(each.cpu_per_second for each in rounds).text(2),
            ratio(latency(rounds, 50), latency(defaults, 50)),
        )
    )


def latency(rounds: list[Round], percent: float) -> Spread:
    """Return a percentile of the time from commit to published file, in seconds."""
    return Spread.of(percentile(each.ours, percent) for each in rounds)


if __name__ == "__main__":
    main()
