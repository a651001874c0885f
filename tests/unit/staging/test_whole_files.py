"""The collecting step stages whole files itself while its reader catches up, and sends blocks otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from apache_beam.utils.timestamp import Timestamp

from penstock.attempt import Attempt, running_attempt
from penstock.io.files.json_lines import JsonLines
from penstock.io.staging import collect as module
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.collect import CollectRecordsFn, WholeFiles
from penstock.io.staging.file_stager import FileStager
from penstock.io.staging.local import LocalStore
from penstock.pace import Pace, reading_at

FILE_BYTES = 400
LINE = b"x" * 9 + b"\n"


class Collecting:
    """One bundle of the step over a local folder."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(str(folder))
        stager = FileStager(self.store, "sink", JsonLines())
        self.pace = Pace(0.0, catches_up=True)
        self._fn = CollectRecordsFn(
            lambda element: element[1],
            lambda element, _: element[0],
            whole_files=WholeFiles(stager, FILE_BYTES),
        )
        self.early: list[tuple[str, RecordBlock]] = []
        """What was emitted before the bundle ended."""

    def run(self, *elements: tuple[str, bytes]) -> list[tuple[str, RecordBlock]]:
        """Return all outputs of a bundle with these elements, whose event times are 1, 2, …"""
        with running_attempt(Attempt("job", 1, 2, "nonce")):
            self._fn.start_bundle()
            with reading_at(self.pace):
                for number, element in enumerate(elements, 1):
                    outputs = self._fn.process(element, Timestamp(micros=number))
                    self.early += [each.value for each in outputs or ()]
            return self.early + [each.value for each in self._fn.finish_bundle()]

    def content(self, block: RecordBlock) -> bytes:
        assert block.staged is not None
        return self.store.read(block.staged.staged)


@pytest.fixture
def collecting(tmp_path: Path) -> Collecting:
    return Collecting(tmp_path)


def test_a_backlog_is_staged_in_whole_files_of_which_none_is_small(collecting: Collecting) -> None:
    outputs = collecting.run(*[("t", LINE)] * 62)
    files = [block.staged for _, block in outputs if block.staged]
    assert len(files) == len(outputs) == 2
    assert [each.length for each in files] == [500, 120]
    assert [each.records for each in files] == [50, 12]
    assert [block.times_us for _, block in outputs] == [(1,), (51,)]
    assert b"".join(collecting.content(block) for _, block in outputs) == 62 * LINE
    assert len(collecting.early) == 1, "a full file does not wait for the end of the bundle"


def test_less_than_a_quarter_of_a_file_is_sent_as_a_block(collecting: Collecting) -> None:
    outputs = collecting.run(*[("large", LINE)] * 11, *[("small", LINE)] * 9)
    assert [(bucket, block.staged is not None) for bucket, block in outputs] == [
        ("large", True),
        ("small", False),
    ]
    assert outputs[1][1] == RecordBlock.of([(number, LINE) for number in range(12, 21)])


def test_a_reader_that_has_caught_up_gets_no_files(collecting: Collecting) -> None:
    collecting.pace.catches_up = False
    outputs = collecting.run(*[("t", LINE)] * 100)
    assert [block.staged for _, block in outputs] == [None]
    assert collecting.pace.held_bytes == 0


def test_what_is_held_counts_as_output_of_the_bundle(collecting: Collecting) -> None:
    collecting.run(*[("t", LINE)] * 30)
    assert collecting.pace.held_bytes == 300


def test_memory_is_limited_with_many_buckets(collecting: Collecting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES", 100)
    collecting.run(*[(str(number), LINE) for number in range(25)])
    assert len(collecting.early) == 20


def test_names_of_staged_files_are_durable_when_the_bundle_has_ended(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Any] = []
    monkeypatch.setattr(LocalStore, "sync", lambda _, names: synced.extend(names))
    outputs = collecting.run(*[("t", LINE)] * 62)
    assert synced == [block.staged.staged for _, block in outputs if block.staged]
