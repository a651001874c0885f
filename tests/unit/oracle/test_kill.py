"""The killer: everything that a child started dies with it, at the moment that was asked for."""

import sys
import time
from pathlib import Path

import pytest

from penstock_emulators.oracle.kill import After, FileAppears, Later, Run, campaign, kill_at, session_members
from tests.support.waiting import wait_until

FAMILY = """
import os, subprocess, sys, time
if len(sys.argv) > 1:
    os.setpgid(0, 0)  # as Spark's Python daemon does
    time.sleep(60)
subprocess.Popen([sys.executable, "-c", os.environ["FAMILY"], "child"])
time.sleep(60)
"""

COUNTING = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
for number in range(len(list(folder.iterdir())), 6):
    time.sleep(0.05)
    (folder / str(number)).touch()
"""


def test_a_kill_reaches_process_groups_that_the_child_made_for_its_own_children(tmp_path):
    command = [sys.executable, "-c", FAMILY]
    with Run(command, log=tmp_path / "log", environment={"FAMILY": FAMILY}) as run:
        session = run.process.pid
        wait_until(lambda: len(session_members(session)) == 2)
        assert run.kill() == 2
    assert session_members(session) == set()


def test_a_paused_child_continues_when_it_is_resumed(tmp_path):
    (tmp_path / "out").mkdir()
    with Run([sys.executable, "-c", COUNTING, str(tmp_path / "out")], log=tmp_path / "log") as run:
        assert run.pause() == 1
        there = len(list((tmp_path / "out").iterdir()))
        time.sleep(0.2)
        assert len(list((tmp_path / "out").iterdir())) == there
        assert run.resume() == 1
        assert run.wait(20) == 0


def test_a_campaign_kills_at_each_kill_point_and_lets_the_last_run_finish(tmp_path):
    (tmp_path / "out").mkdir()
    moments = [
        ("first file", FileAppears(tmp_path / "out")),
        ("two more files", FileAppears(tmp_path / "out", nth=2)),
        ("a moment after a file", Later(FileAppears(tmp_path / "out"), 0.01)),
    ]
    kills = campaign([sys.executable, "-c", COUNTING, str(tmp_path / "out")], moments, log=tmp_path / "log")
    assert [kill.moment for kill in kills] == ["first file", "two more files", "a moment after a file"]
    assert all(kill.processes == 1 for kill in kills)
    assert len(list((tmp_path / "out").iterdir())) == 6


def test_a_child_that_fails_ends_the_campaign_with_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="status 3"):
        campaign([sys.executable, "-c", "raise SystemExit(3)"], [("never", After(60))], log=tmp_path / "log")


def test_a_kill_point_that_is_never_reached_is_an_error(tmp_path):
    moment = FileAppears(Path(tmp_path / "nowhere"))
    moment.arm()
    with (
        Run([sys.executable, "-c", "import time; time.sleep(60)"], log=tmp_path / "log") as run,
        pytest.raises(TimeoutError, match="has not come within"),
    ):
        kill_at(run, moment, "it", seconds=0.2)
