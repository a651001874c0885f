"""Sinks that send rows after the commit: each event reaches the target once and in order, whatever dies and when."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from penstock.io.staging.names import STAGING
from tests.simulation.sinks.epochs import play, play_copies


@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_any_request_to_the_target_loses_doubles_and_reorders_nothing(tmp_path: Path, seed: int):
    requests = play(str(tmp_path), seed, None, True)
    assert requests >= 10
    for crash_at in range(requests):
        for before in (True, False):
            shutil.rmtree(tmp_path / STAGING, ignore_errors=True)
            play(str(tmp_path), seed, crash_at, before)


@pytest.mark.parametrize("seed", range(40))
def test_lost_answers_and_paused_drivers_that_resume_much_later_change_nothing(tmp_path: Path, seed: int):
    play(str(tmp_path), seed, random.Random(seed).randrange(60), bool(seed % 2), twists=True)


def test_of_a_checkpoint_and_its_copy_no_shard_of_the_target_gets_rows_of_both(tmp_path: Path, campaign):
    refused = [play_copies(str(tmp_path), seed) for seed in range(campaign.size(30, 1000))]
    assert refused.count(0) < len(refused) / 3, "most histories must meet the other copy"
