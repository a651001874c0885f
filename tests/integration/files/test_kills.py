"""SIGKILL of driver, JVM and workers from another process, at each hook of an epoch and at random moments.

The source is generated, so the expected output is known without reading anything. The checker shares no code with
Penstock. A consumer looks at the output during the whole run and takes every third file away. A reader asks until when
the output is complete, and looks whether it is.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from penstock.io.files import complete_until
from penstock.runner import RemoteJob
from penstock_emulators.oracle.kill import After, FileAppears, Later, Moment, campaign, python
from penstock_emulators.oracle.lines import Line, read_lines
from penstock_emulators.oracle.rules import counted
from tests.integration.files.counting import AT_ONCE, PER_SECOND, START, expected
from tests.support.oracle.trusting import Place, TrustingReader
from tests.support.oracle.watch import Consumer

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=50)]

KEYS, SECONDS = 4, 180.0


class Folders:
    """The folders to which the pipeline of a campaign writes."""

    def __init__(self, root: Path) -> None:
        self.output, self.taken = root / "output", root / "taken"
        self.checkpoint, self.hooks, self.log = root / "checkpoint", root / "hooks", root / "log"
        self.hooks.mkdir()
        self.count = 0

    def command(self, *options: str) -> list[str]:
        folders = map(str, (self.output, self.checkpoint, self.hooks))
        return python("tests.integration.files.counting", *folders, str(KEYS), *options)

    def lines(self) -> list[Line]:
        return list(read_lines(self.output, self.taken))

    def end_soon(self, consumer: Consumer) -> None:
        """Let each key end above every number that the pipeline may have read so far, published or not."""
        with consumer.still():
            seen = [line.content["n"] for line in self.lines()]
        self.count = max(seen, default=0) + 3 * PER_SECOND
        (self.hooks / "end.new").write_text(str(self.count))
        (self.hooks / "end.new").rename(self.hooks / "end")

    def wrong(self) -> list[str]:
        """Return one sentence for each line that is missing, doubled or out of order after the pipeline has ended."""
        return counted(self.lines(), "key", "n", expected(KEYS, self.count))

    def places(self, consumer: Consumer) -> list[Place]:
        """Where the times of the output are: the marks in it, and the checkpoint."""

        def missing(times: Mapping[str, float]) -> Iterator[str]:
            with consumer.still():
                lines = self.lines()
            numbers = defaultdict(set)
            for line in lines:
                numbers[line.content["key"]].add(line.content["n"])
            for name, at in times.items():
                # Number n has the time START + 2 n.
                below = min(self.count or math.inf, math.ceil((at - START) / 2))
                kind = AT_ONCE if AT_ONCE.strip() in name else ""
                for key in (f"k{number}{kind}" for number in range(KEYS)):
                    lost = below - sum(number < below for number in numbers[key])
                    if lost > 0:
                        yield f"{key} lacks {lost} numbers below {at}"

        return [
            Place("output", lambda: complete_until(self.output), missing),
            Place("checkpoint", lambda: RemoteJob.open(str(self.checkpoint)).complete_until(), missing),
        ]

    def moments(self) -> dict[str, Moment]:
        """The hooks of an epoch. The first new record is that of the take-over by the driver."""
        return {
            "after the read": FileAppears(self.hooks, "read-*"),
            "after the exchange": FileAppears(self.hooks, "exchanged-*"),
            "before the commit": FileAppears(self.output, ".penstock-staging/*/*/g*"),
            "after the commit": FileAppears(self.checkpoint, "records/*.record", nth=3),
            "in the middle of publishing": FileAppears(self.output, "counts/*/*.jsonl"),
            "at the take-over": FileAppears(self.checkpoint, "records/*.record"),
        }


def test_kills_at_the_hooks_of_an_epoch_lose_nothing_double_nothing_and_keep_order(tmp_path, campaign_of):
    folders, rng = Folders(tmp_path), campaign_of.random("kills")
    rounds = campaign_of.size(3, 30)
    named = list(folders.moments().items())
    chosen = [named[(number + 2) % len(named)] for number in range(rounds)]
    chosen = [(name, Later(moment, rng.choice([0.0, rng.random() / 5]))) for name, moment in chosen]
    if campaign_of.full:
        chosen += [("at random", After(5 + rng.random() * 10)) for _ in range(rounds)]
    with (
        Consumer(folders.output, folders.taken, take=1 / 3, seed=campaign_of.seed) as consumer,
        TrustingReader(folders.places(consumer)) as reader,
    ):
        kills = campaign(
            folders.command(),
            chosen,
            log=folders.log,
            seconds=campaign_of.size(SECONDS, 900),
            before_the_end=lambda: folders.end_soon(consumer),
        )
    lines = folders.lines()
    wrong = folders.wrong() + [
        f"{line.place} and keyed state differ"
        for line in lines
        if line.content.get("seen", line.content["n"]) != line.content["n"]
    ]
    campaign_of.record(
        "kills",
        kills=dict(Counter(kill.moment for kill in kills)),
        processes=sum(kill.processes for kill in kills),
        lines=len(lines),
        times=sum(reader.seen.values()),
        wrong=wrong + consumer.wrong + reader.wrong,
    )
    assert len(kills) == len(chosen)
    assert consumer.wrong == []
    assert reader.wrong == []
    # A run of a campaign is killed at its first commit, so most of them have one time and no mark.
    assert min(reader.seen.values()) >= 2
    assert wrong == []


@pytest.fixture
def campaign_of(campaign):
    """The fixture `campaign` under another name: here `campaign` is a function of the oracle."""
    return campaign
