"""SIGKILL of driver, JVM and workers while windows, state and timers are active: the published results are exact.

The expected results are computed here in plain Python from the last number of each key. Where several results are
allowed (the number of early panes, the firing time of processing-time timers), the test checks only what all of them
have in common.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.oracle.kill import FileAppears, Later, Moment, campaign, python
from penstock_emulators.oracle.lines import Line, read_lines
from tests.integration.runner.programs import stateful as program

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=40)]

KEYS, SECONDS = 3, 180.0
EARLY, ON_TIME, LATE = 0, 1, 2
"""Timings of panes, as Beam counts them."""

Row = dict[str, Any]
Counts = dict[tuple[str, int], int]


class Folders:
    """The folders to which the pipeline of a campaign writes."""

    def __init__(self, root: Path) -> None:
        self.output, self.checkpoint = root / "output", root / "checkpoint"
        self.hooks, self.log = root / "hooks", root / "log"
        self.hooks.mkdir()
        self.count = 0

    def command(self) -> list[str]:
        folders = map(str, (self.output, self.checkpoint, self.hooks))
        return python("tests.integration.runner.programs.stateful", *folders, str(KEYS))

    def rows(self) -> dict[str, list[Row]]:
        """Return the published rows by kind, in the order of the files."""
        rows: dict[str, list[Row]] = defaultdict(list)
        for line in self._lines():
            rows[line.content["what"]].append(line.content)
        return rows

    def end_soon(self) -> None:
        """Let each key end well above anything that the pipeline may have read by now; it fails if it has not."""
        self.count = max((row["number"] for row in self.rows()["number"]), default=0) + 600
        (self.hooks / "end.new").write_text(str(self.count))
        (self.hooks / "end.new").rename(self.hooks / "end")

    def moments(self) -> dict[str, Moment]:
        """The hooks of an epoch. The first new record is the one by which the driver takes over."""
        return {
            "after timers have fired": FileAppears(self.hooks, "timer-*"),
            "when state is written, before the commit": FileAppears(self.checkpoint, "state/*", nth=3),
            "after the commit": FileAppears(self.checkpoint, "records/*.record", nth=4),
            "after the read": FileAppears(self.hooks, "read-*", nth=2),
            "when files are staged, before the commit": FileAppears(self.output, ".penstock-staging/*/*/g*"),
            "in the middle of publishing": FileAppears(self.output, "rows/*/*.jsonl"),
            "at the take-over": FileAppears(self.checkpoint, "records/*.record"),
        }

    def _lines(self) -> Iterator[Line]:
        return read_lines(self.output)


def test_kills_leave_windows_state_and_timers_exact(tmp_path, campaign_of):
    folders, rng = Folders(tmp_path), campaign_of.random("stateful kills")
    named = list(folders.moments().items())
    by_name = campaign_of.size(3, 15)
    chosen = [named[number % len(named)] for number in range(by_name)]
    chosen = [(name, Later(moment, rng.choice([0.0, 2 * rng.random()]))) for name, moment in chosen]
    begun = folders.moments()["at the take-over"]
    chosen += [("at random", Later(begun, 1 + rng.random() * 9)) for _ in range(campaign_of.size(0, 15))]
    kills = campaign(
        folders.command(),
        chosen,
        log=folders.log,
        seconds=campaign_of.size(SECONDS, 900),
        before_the_end=folders.end_soon,
    )
    rows = folders.rows()
    wrong = list(differences(rows, folders.count))
    campaign_of.record(
        "stateful-kills",
        kills=dict(Counter(kill.moment for kill in kills)),
        processes=sum(kill.processes for kill in kills),
        numbers_of_a_key=folders.count,
        rows={what: len(found) for what, found in sorted(rows.items())},
        wrong=wrong,
    )
    assert len(kills) == len(chosen)
    assert wrong == []


# What must be true of the output of a pipeline that has ended.


def differences(rows: dict[str, list[Row]], count: int) -> Iterator[str]:
    """Return the differences between `rows` and the results for keys that count up to `count` (exclusive)."""
    keys = [f"k{number}" for number in range(KEYS)]
    yield from (f"{len(rows[what])} rows are {what}" for what in rows.keys() - _KINDS)
    yield from _unlike(
        "numbers", _listed(rows["number"], "number"), {key: list(range(count)) for key in keys}
    )
    queued = {key: sorted(numbers) for key, numbers in _listed(rows["queue"], "number").items()}
    yield from _unlike("queued numbers", queued, {key: list(range(count)) for key in keys})
    for what in ("session", "tick", "bell", "book"):
        expected = [{"what": what, "key": key, **each} for key in keys for each in _KINDS[what](count)]
        yield from _unlike(what, Counter(map(_text, rows[what])), Counter(map(_text, expected)))
    counts = {(key, start): n for key in keys for start, n in _counted(count).items()}
    punctual = {(key, start) for key in keys for start in _windows(count)}
    yield from _unlike("last running counts", _last(rows["running"]), counts)
    yield from _unlike("sums of new counts", _summed(rows["since"]), counts)
    for what in ("running", "since"):
        yield from _wrong_panes(what, rows[what], punctual)


def _sessions(count: int) -> Iterator[Row]:
    for first in range(0, count, program.BURST):
        numbers = list(range(first, min(first + program.BURST, count)))
        start, end = program.second(numbers[0]), program.second(numbers[-1]) + program.GAP
        yield {"start": start, "end": end, "numbers": numbers}


def _ticks(count: int) -> Iterator[Row]:
    for start in _windows(count):
        yield from ({"at": at} for at in _ticks_of(start))


def _bells(count: int) -> Iterator[Row]:
    for number in range(0, count, program.BELL_EVERY):
        yield {"number": number, "at": program.second(number) + 0.5}


def _books(count: int) -> Iterator[Row]:
    for start, numbers in _windows(count).items():
        yield {
            "start": start,
            "count": len(numbers),
            "numbers": numbers,
            "residues": sorted({number % program.RESIDUES for number in numbers}),
            "sum": sum(numbers),
            "backwards": numbers[::-1],
            "ticks": list(_ticks_of(start)),
        }


_KINDS: dict[str, Any] = {
    "number": None,
    "queue": None,
    "running": None,
    "since": None,
    "session": _sessions,
    "tick": _ticks,
    "bell": _bells,
    "book": _books,
}
"""What there may be, and what makes it where it does not depend on timing."""


def _ticks_of(start: int) -> range:
    return range(start + program.TICK, start + program.WINDOW, program.TICK)


def _start(second: int) -> int:
    """The start of the fixed window of a second, both counted from the program's start."""
    return second - (program.START + second) % program.WINDOW


def _windows(count: int) -> dict[int, list[int]]:
    """The numbers of each fixed window, by its start."""
    windows: dict[int, list[int]] = defaultdict(list)
    for number in range(count):
        windows[_start(program.second(number))].append(number)
    return windows


def _counted(count: int) -> Counter[int]:
    """Return the number of elements in each fixed window, on time or late."""
    counts = Counter({start: len(numbers) for start, numbers in _windows(count).items()})
    late = range(0, count, program.LATE_EVERY)
    return counts + Counter(_start(program.second(number) - program.LATE) for number in late)


def _listed(rows: Iterable[Row], field: str) -> dict[str, list[Any]]:
    listed: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        listed[row["key"]].append(row[field])
    return dict(listed)


def _last(rows: Iterable[Row]) -> Counts:
    """The count of the last pane of each window."""
    return {(row["key"], row["start"]): row["count"] for row in sorted(rows, key=lambda row: row["index"])}


def _summed(rows: Iterable[Row]) -> Counts:
    """The counts of all panes of each window together."""
    counts: Counter[tuple[str, int]] = Counter()
    for row in rows:
        counts[row["key"], row["start"]] += row["count"]
    return dict(counts)


def _wrong_panes(what: str, rows: Iterable[Row], punctual: set[tuple[str, int]]) -> Iterator[str]:
    """Return the windows whose panes are not consecutive; windows in `punctual` have elements on time."""
    panes: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["index"]):
        panes[row["key"], row["start"]].append(row)
    for name, mine in panes.items():
        timings = [row["timing"] for row in mine]
        early = timings.count(EARLY)
        nonspeculative = [-1] * early + list(range(len(mine) - early))
        if [row["index"] for row in mine] != list(range(len(mine))):
            yield f"{what}: the panes of {name} are numbered {[row['index'] for row in mine]}"
        if timings != sorted(timings) or [row["nonspeculative"] for row in mine] != nonspeculative:
            yield f"{what}: the panes of {name} are timed {timings}"
        if timings.count(ON_TIME) > 1 or (name in punctual and ON_TIME not in timings):
            yield f"{what}: {timings.count(ON_TIME)} panes of {name} are on time"


def _unlike(what: str, found: dict[Any, Any], expected: dict[Any, Any]) -> Iterator[str]:
    names = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    for name in names[:3]:
        yield f"{what}: {name} is {_short(found.get(name))}, not {_short(expected.get(name))}"
    if len(names) > 3:
        yield f"{what}: {len(names) - 3} more of {len(expected)} differ"


def _text(row: Row) -> str:
    return json.dumps(row, sort_keys=True)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:150]} … {text[-150:]}"


@pytest.fixture
def campaign_of(campaign):
    """The size of this run; `campaign` is the killer's word here."""
    return campaign
