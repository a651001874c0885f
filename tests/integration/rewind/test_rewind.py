"""`penstock rewind` of a real job: the target goes back, the job reads again, and the result has each change once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.launch.run import ExitCode
from tests.integration.rewind.jobs import CHANGED, RewoundJob

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=40)]

STEPS = ("took over", "noted", "put the target back", "committed")
"""The steps after which the command is killed."""


@pytest.mark.parametrize("sink", ["delta", "iceberg"])
def test_a_log_has_each_change_once_after_a_rewind_that_was_killed_at_each_step(
    sink: str, spanner: Any, tmp_path: Path
) -> None:
    job = RewoundJob(tmp_path, sink, spanner, mode="log")
    with job.running():
        job.time_of_a_mark()  # the first load is over
        job.write("early")
        job.time_of_a_mark()
        job.write("good")
        to = job.time_of_a_mark()
        job.write("bad", "worse")
        job.wait()
    before = job.changes()
    for step in STEPS:
        assert job.killed_rewind("after", step, to)
        if step == "put the target back":
            refused = job.command("run")
            assert refused.returncode == ExitCode.PREFLIGHT
            assert "has begun and has not ended" in refused.stdout + refused.stderr
    job.rewind(to)
    kept = job.rows()
    assert kept
    assert all(row["timestamp"] < to for row in kept)
    assert set(job.complete().values()) == {to}
    with job.running():
        job.write("after")
        job.wait()
    after = job.changes()
    assert set(after.values()) == {1}
    assert before.keys() < after.keys()
    assert len(after) == len(before) + CHANGED


@pytest.mark.parametrize(
    ("sink", "mode", "options"),
    [
        ("delta", "current", {}),
        ("delta", "current", {"deletion_vectors": True}),
        ("delta", "history", {"deletion_vectors": True}),
        ("iceberg", "current", {}),
        ("iceberg", "history", {}),
    ],
    ids=["delta", "delta-vectors", "delta-history", "iceberg", "iceberg-history"],
)
def test_rows_of_a_bad_release_are_undone_and_written_again(
    sink: str, mode: str, options: dict[str, Any], spanner: Any, tmp_path: Path
) -> None:
    job = RewoundJob(tmp_path, sink, spanner, mode=mode, **options)
    with job.running():
        job.time_of_a_mark()  # the first load is over
        job.write("early")
        job.time_of_a_mark()
        job.write("good")
        to = job.time_of_a_mark()
        good = job.rows()
        job.time_of_a_mark()
    with job.running(mask_columns={"Note": "redact"}):
        job.write("masked", "masked again")
        job.delete(5)
        job.wait()
    assert sorted(map(repr, job.rows())) != sorted(map(repr, good))
    for step in STEPS:
        job.rewind_killed_after(step, to)
    job.rewind(to)
    assert sorted(map(repr, job.rows())) == sorted(map(repr, good))
    with job.running():
        job.write("after")
        job.wait()
        if mode == "current":
            compared = job.command("verify", "--timeout", "2m")
            assert compared.returncode == 0, compared.stdout + compared.stderr
    notes = [row["Note"] for row in job.rows() if row["Id"] == 3]
    history = ["first", "early", "good", "masked", "masked again", "after"]
    assert sorted(notes) == sorted(history if mode == "history" else ["after"])


@pytest.mark.parametrize("sink", ["delta", pytest.param("iceberg", marks=pytest.mark.campaign)])
def test_a_command_that_is_killed_before_each_change_of_its_checkpoint_is_repeated(
    sink: str, spanner: Any, tmp_path: Path, campaign: Any
) -> None:
    job = RewoundJob(tmp_path, sink, spanner, mode="current")
    with job.running():
        job.time_of_a_mark()  # the first load is over
        job.write("good")
        to = job.time_of_a_mark()
        good = job.rows()
        job.write("bad")
        job.wait()
    # Each try begins with what the one before has left, so later changes of the checkpoint are met, too.
    number, stride = 1, campaign.size(4, 1)
    while job.killed_rewind("before", number, to):
        number += stride
    assert number > 5
    assert sorted(map(repr, job.rows())) == sorted(map(repr, good))
    # Rows of a table go back to one of its versions.
    assert max(job.complete().values()) <= to
    with job.running():
        job.write("after")
        job.wait()
        compared = job.command("verify", "--timeout", "2m")
        assert compared.returncode == 0, compared.stdout + compared.stderr
    assert [row["Note"] for row in job.rows() if row["Id"] == 3] == ["after"]
