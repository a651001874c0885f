"""Beam's own tests fail here exactly where docs/beam-compatibility.md says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.beam_suites.page import EVIDENCE, PAGE, RUNNERS, outcomes_of, page, red_on_the_page
from tools.beam_suites.reasons import REASONS, reason

QUICK = ("fn-api-runner",)


@pytest.mark.spark
@pytest.mark.long(seconds=35)
def test_beams_suites_fail_exactly_where_the_page_says(campaign: Any, tmp_path: Path) -> None:
    recorded = json.loads(EVIDENCE.read_text("utf-8"))["suites"]
    chosen = list(recorded) if campaign.full else QUICK
    for suite in chosen:
        outcomes = outcomes_of(suite, "penstock", tmp_path)
        assert set(outcomes["tests"].values()) <= {"passed", "skipped", "failed"}
        red = sorted(test for test, came_out in outcomes["tests"].items() if came_out == "failed")
        assert red == red_on_the_page(suite), outcomes["reasons"]


def test_the_page_matches_the_recorded_results_and_explains_each_failure() -> None:
    evidence = json.loads(EVIDENCE.read_text("utf-8"))
    assert PAGE.read_text("utf-8") == page(evidence)
    red = {test for suite in evidence["suites"].values() for test in suite["red here only"]}
    assert "not explained" not in {reason(test) for test in red}
    assert [start for start in REASONS if not any(test.startswith(start) for test in red)] == []
    for suite in evidence["suites"].values():
        assert {sum(suite[runner]) for runner in RUNNERS} == {suite["collected"]}
