"""The demo waits as long as the pipeline works, and fails when nothing comes any more."""

from __future__ import annotations

import pytest

from penstock_emulators.demo.waiting import PATIENCE_SECONDS, Patience


def test_a_slow_pipeline_may_take_any_time_as_long_as_it_publishes_something() -> None:
    now, files = [0.0], [0]
    patience = Patience(lambda: files[0], lambda: now[0])
    for _ in range(20):
        now[0] += PATIENCE_SECONDS - 1
        files[0] += 1
        patience.check("the last line")


def test_a_pipeline_that_publishes_nothing_is_waited_for_only_so_long() -> None:
    now = [0.0]
    patience = Patience(lambda: 7, lambda: now[0])
    patience.check("the last line")
    now[0] = PATIENCE_SECONDS
    patience.check("the last line")
    now[0] += 1
    with pytest.raises(RuntimeError, match="the last line did not come: nothing was published for 180 s"):
        patience.check("the last line")
