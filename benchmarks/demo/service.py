"""Which Spanner the demo uses: Google's emulator where it is installed, else the simulated service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.spanner import EmulatorNotFoundError, SpannerEmulator, find_binary

CHURN_SECONDS = 2.0

Service = SpannerEmulator | SimulatedSpanner


@dataclass(frozen=True, slots=True)
class Choice:
    """A service that is not started yet, and one line that says which one it is and why."""

    line: str
    start: Callable[[], Service]


def choose(*, simulated: bool, seed: int) -> Choice:
    """Return Google's emulator if it is installed and `simulated` is false, else the simulated service.

    `seed` chooses the splits, merges and moves of the simulated service.
    """
    if simulated:
        return _simulated("--simulated was given", seed)
    try:
        find_binary()
    except EmulatorNotFoundError:
        return _simulated("Google's Spanner emulator is not installed (docs/install.md says how)", seed)
    return Choice(
        "Using Google's Spanner emulator, because it is installed; partitions live two to four seconds.",
        lambda: SpannerEmulator.start(token_life_seconds=2),
    )


def _simulated(reason: str, seed: int) -> Choice:
    return Choice(
        f"Using the simulated Spanner service, because {reason}; partitions change every {CHURN_SECONDS:g} seconds.",
        lambda: SimulatedSpanner.start(churn_seconds=CHURN_SECONDS, seed=seed),
    )
