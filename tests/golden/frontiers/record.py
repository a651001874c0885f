"""Record frontiers in the middle of initial snapshots: `python -m tests.golden.frontiers.record VERSION`.

Each is what a checkpoint of this version has of its source: the bytes of the parts, and of the frontier of the log or
the change stream after the remaining ranges. Run it once for each release, before the release, and never again for the
same version.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from penstock.io.change_streams.coders import FrontierCoder
from penstock.io.change_streams.flat import FlatPosition
from penstock.io.change_streams.incremental.options import initial_request
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.range_frontier import RangeRead
from penstock.io.postgres.coder import LogFrontierCoder
from penstock.io.postgres.initial_scan.coder import ScanCoder as PostgresCoder
from penstock.io.postgres.initial_scan.frontier import LogFrontier, RangeLost, RangeProgress, begun
from penstock.io.postgres.position import Position, ReadView
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.initial_scan.frontier import KeyRange, ScanFrontier, Table
from penstock.io.spanner.initial_scan.tracker import ScanCoder as SpannerCoder
from penstock.io.spanner.tracker import FrontierCoder as StreamCoder

FOLDER = Path(__file__).parent


class Case(NamedTuple):
    """A frontier of one source. `end_of`: the progress at the end of a range, with ten rows more."""

    coder: FrontierCoder
    parts: Callable[[], list[Any]]
    end_of: Callable[[Any], Any]


def postgres() -> list[Any]:
    """Return two parts: one range was read, one is lost, others have begun; a second slot has nothing to read."""
    progress, _ = (
        SnapshotProgress()
        .with_initial(initial_request())
        .resolved("initial", {"public.big": 60_000, "public.keyless": 9_000, "public.small": 3})
    )
    view = ReadView("741:744:742", 0x16B3748, 1_700_000_000_000_000_000, "00000003-0000001B-1", 7)
    blocks = (("public.big", 3000, True), ("public.keyless", 1500, False), ("public.small", 1, True))
    planned = Position(
        0x16B3700, 0, "7300000000000000001", snapshots=progress, initial=view, published="x", blocks=blocks
    )
    other = Position(0x16B3701, 0, "7300000000000000001")
    positions = {
        "penstock": FlatPosition(list(planned), 1_700_000_000_000_000_000),
        "penstock_2": FlatPosition(list(other), 1_699_999_999_000_000_000),
    }
    first, second = begun(LogFrontier(positions, None)).deal(2)
    first = first.advanced({0: RangeProgress(1024, 20_480), 2: RangeProgress(2100, 940)}).apply(RangeRead(0))
    return [first, second.advanced({3: RangeProgress(512, 4096)}).apply(RangeLost(3, False))]


def spanner() -> list[Any]:
    """Return two parts: one range was read, one has begun."""
    time = 1_700_000_000_123_456_789
    tables = (
        Table("Accounts", ("Id", "Region", "Balance"), (1, 3, 4), 2),
        Table("sales.Orders", ("Id",), (1,), 1),
    )
    ranges = {
        0: KeyRange(0, "", '["17","EU"]'),
        1: KeyRange(0, '["17","EU"]', ""),
        2: KeyRange(1, "", ""),
    }
    stream = Frontier.starting_at(time + 1, None)
    first, second = ScanFrontier(time, tables, ranges, stream, time + 10**15, "NEW_ROW").deal(2)
    return [first.apply(RangeRead(0)), second.advanced({1: '["40",null]'})]


CASES = {
    "postgres": Case(
        PostgresCoder(LogFrontierCoder()), postgres, lambda rest: RangeProgress(rest.end, rest.rows + 10)
    ),
    "spanner": Case(SpannerCoder(StreamCoder()), spanner, lambda rest: rest.end or '["99","ZZ"]'),
}


def finished(parts: list[Any], end_of: Callable[[Any], Any]) -> Any:
    """Return the frontier after all ranges of the parts were read."""
    whole = type(parts[0]).join(parts)
    for number, rest in sorted(whole.ranges.items()):
        whole = whole.advanced({number: end_of(rest)}).apply(RangeRead(number))
    return whole.settled()


def main(version: str) -> int:
    target = FOLDER / f"{version}.json"
    # A version that has its frontiers keeps them.
    if not target.exists():
        recorded = {
            name: {
                "parts": [case.coder.encode(part).decode() for part in case.parts()],
                "after": case.coder.encode(finished(case.parts(), case.end_of)).decode(),
            }
            for name, case in CASES.items()
        }
        target.write_text(json.dumps(recorded, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
