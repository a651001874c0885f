"""When a preview ends, and what it says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from click.testing import CliRunner

from penstock.cli.commands import cli
from penstock.cli.configuration import Configuration
from penstock.cli.preview import MAX_SECONDS, PreviewObserver, on_this_machine
from penstock.io.change_streams.metrics import CHANGES
from penstock.telemetry.status import PipelineStatus
from penstock.templates.template import templates

BEGAN = 1_000.0


@dataclass(frozen=True)
class Text:
    text: str
    kind: str = "change"


@dataclass
class Run:
    """A pipeline as its observer sees it, with a clock that only the test moves."""

    limit: int = 10
    arrived: list[Text] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    now: float = BEGAN
    is_read: bool = True

    def __post_init__(self) -> None:
        self.observer = PreviewObserver(self, "letter", self.show, self.refused.append, lambda: self.now)

    def take(self) -> list[Text]:
        taken, self.arrived = self.arrived, []
        return taken

    def show(self, text: str) -> bool:
        self.printed.append(text)
        return self.is_read

    def look(self, *texts: str, epochs: int, watermark: float | None = None) -> str:
        self.arrived += map(Text, texts)
        return self.observer.look(at(epochs, watermark))


def at(epochs: int, watermark: float | None = None, changes: int = 0) -> PipelineStatus:
    return PipelineStatus(0, epochs, None, watermark, None, None, {CHANGES: changes})


def test_it_ends_when_as_many_changes_are_shown_as_were_asked_for() -> None:
    run = Run(limit=2)
    assert run.look("a", epochs=1) == ""
    assert run.look("b", "c", epochs=2) == "as asked"
    assert run.printed == ["a", "b"]
    assert run.observer.finish(at(2), interrupted=False) == "2 changes; as asked; nothing was written"


def test_it_ends_an_epoch_after_everything_from_before_it_began_is_read() -> None:
    run = Run()
    assert run.look(epochs=1) == ""
    assert run.look(epochs=2, watermark=BEGAN - 1) == ""
    assert run.look(epochs=3, watermark=BEGAN + 1) == ""
    assert (
        run.look(epochs=3, watermark=BEGAN + 2) == ""
    )  # what the third epoch read arrives during the fourth
    assert run.look("a", epochs=4, watermark=BEGAN + 3) == "no more at hand"
    assert run.observer.finish(at(4), interrupted=False) == "1 change; no more at hand; nothing was written"


def test_it_ends_after_a_minute_although_the_source_has_more() -> None:
    run = Run()
    run.look(epochs=0)
    run.now += 10 * MAX_SECONDS  # Spark may need long to start
    assert run.look("a", epochs=1) == ""
    run.now += MAX_SECONDS
    assert run.look(epochs=2) == "no more within 60 s"


def test_a_filter_that_nothing_passes_and_a_source_without_changes_are_told_apart() -> None:
    assert (
        Run()
        .observer.finish(at(3, changes=1_200), interrupted=False)
        .startswith("0 changes of 1,200 that were read pass the filters")
    )
    assert "the source has none from the start of the read" in Run().observer.finish(at(3), interrupted=False)


def test_an_interrupt_is_told() -> None:
    assert Run(arrived=[Text("a")]).observer.finish(at(1), interrupted=True) == (
        "1 change; interrupted; nothing was written"
    )


def test_refused_changes_are_not_counted_and_what_comes_last_is_shown() -> None:
    run = Run(arrived=[Text("no key", "letter"), Text("a")])
    assert run.observer.finish(at(3), interrupted=False) == "1 change; no more at hand; nothing was written"
    assert (run.printed, run.refused) == (["a"], ["dead letter: no key"])


def test_it_ends_when_nobody_reads_its_output() -> None:
    run = Run(is_read=False)
    assert run.look("a", "b", epochs=1) == "as asked"
    assert run.printed == ["a"]


@pytest.mark.parametrize("options", [["--limit", "10"], ["--print"]])
def test_limit_and_print_belong_together(options: list[str]) -> None:
    done = CliRunner().invoke(cli, ["run", "postgres-to-files", *options])
    assert done.exit_code == 2
    assert "--limit 10 --print shows ten changes and writes nothing" in done.output


@pytest.mark.parametrize(
    ("master", "left"), [("local[2]", {"master": "local[2]"}), ("spark://host:7077", {})]
)
def test_a_preview_runs_on_this_machine_and_reports_no_run(master: str, left: dict[str, str]) -> None:
    runner = {"master": master, "openlineage": "orders", "epoch_seconds": 1.0}
    configuration = Configuration(templates()["spanner-to-files"], {}, runner)
    assert on_this_machine(configuration).runner == {**left, "epoch_seconds": 1.0}
