"""Which dead letters wait: those in files that no replay has taken."""

from __future__ import annotations

from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.pipelines.dead_letter_files import WriteDeadLetters
from penstock.pipelines.replays import ReplayFolder
from penstock.pipelines.waiting_letters import waiting_letters
from penstock.runner.options import PySparkOptions  # noqa: F401 - Beam then knows --checkpoint_dir

OLD, NEW = "dead-letters/2026-01-31T11/00-of-01_a.jsonl", "dead-letters/2026-01-31T12/00-of-01_b.jsonl"
ELEVEN, TWELVE = 1_769_857_200.0, 1_769_860_800.0


def values(found: list[object]) -> dict[str, float]:
    return {each.name: each.value for each in found}  # type: ignore[attr-defined]


def test_the_oldest_letter_is_of_the_first_hour_that_was_not_replayed() -> None:
    assert values(waiting_letters([NEW, OLD], ())) == {
        "penstock_dead_letter_files": 2,
        "penstock_oldest_dead_letter_timestamp_seconds": ELEVEN,
    }
    assert values(waiting_letters([NEW, OLD], {OLD})) == {
        "penstock_dead_letter_files": 1,
        "penstock_oldest_dead_letter_timestamp_seconds": TWELVE,
    }


def test_without_waiting_letters_there_is_no_oldest() -> None:
    assert values(waiting_letters([OLD], {OLD})) == {"penstock_dead_letter_files": 0}


def test_the_folder_of_a_job_and_its_replays_are_looked_at(tmp_path: Path) -> None:
    options = PipelineOptions([f"--checkpoint_dir={tmp_path}/checkpoint"])
    pipeline, write = beam.Pipeline(options=options), WriteDeadLetters(f"{tmp_path}/letters")
    _ = pipeline | beam.Create([]) | write
    assert values(write.measure()) == {"penstock_dead_letter_files": 0}  # the folder does not exist
    for file in (OLD, NEW):
        (tmp_path / "letters" / file).parent.mkdir(parents=True)
        (tmp_path / "letters" / file).touch()
    assert values(write.measure())["penstock_oldest_dead_letter_timestamp_seconds"] == ELEVEN
    ReplayFolder(f"{tmp_path}/checkpoint").plan([OLD])
    assert values(write.measure()) == {
        "penstock_dead_letter_files": 1,
        "penstock_oldest_dead_letter_timestamp_seconds": TWELVE,
    }
