"""The reader on the emulator while partitions change continuously."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock_emulators.bigtable import Fault
from tests.integration.bigtable.replay import (
    KINDS,
    assert_no_duplicates,
    assert_order_of_each_row,
    kinds_of,
    mutations_of,
    replayed,
)
from tests.support.epochs import Epochs

pytestmark = [pytest.mark.emulator, pytest.mark.slow(seconds=10)]


def changes_of(table: Any) -> int:
    return int(table.control.statistics(table.name)["layout_changes"])


def check(driver: Epochs, table: Any) -> None:
    assert_no_duplicates(driver.committed)
    assert_order_of_each_row(driver.committed)
    assert replayed(driver.committed) == table.cells()


@pytest.mark.long(seconds=5)
@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.campaign), 3])
def test_replay_equals_the_table_through_churn_and_crashes(
    table: Any, writers: Callable[..., Any], parts: int, campaign: Any
) -> None:
    mutations, layout_changes = campaign.size(4000, 200_000), campaign.size(10, 50)
    rng = campaign.random(f"churn {parts}")
    table.control.chunk_bytes(table.name, 200)
    table.control.churn(0.25, seed=rng.randrange(1000), table=table.name)
    driver, crashes = Epochs(table.reading(), parts), 0
    with writers(table, pause=campaign.size(5, 0) / 1000) as running:
        until = time.monotonic() + 1800
        while mutations_of(driver.committed) < mutations or changes_of(table) < layout_changes:
            assert time.monotonic() < until, "the writers are too slow"
            crash = rng.random() < 0.2
            crashes += crash
            driver.run(rng.choice((0.02, 0.2, 0.4)), crash=crash)
    driver.run_until(time.time_ns())
    check(driver, table)
    campaign.record(
        f"bigtable-churn-{parts}",
        parts=parts,
        mutations=mutations_of(driver.committed),
        records=len(driver.committed),
        layout_changes=changes_of(table),
        crashes=crashes,
    )
    assert running.writes > 200
    assert kinds_of(driver.committed) == KINDS
    assert driver.widest >= min(parts, 2)
    assert sorted(driver.seconds_to_stop)[len(driver.seconds_to_stop) // 2] < 0.5, "a cut waits"


@pytest.mark.campaign
def test_sixteen_layout_changes_a_second_stall_nothing(
    table: Any, writers: Callable[..., Any], campaign: Any
) -> None:
    seconds, began = campaign.size(8, 120), time.monotonic()
    table.control.churn(1 / 16, seed=campaign.seed, table=table.name)
    driver, furthest_behind = Epochs(table.reading(), 2), 0.0
    with writers(table):
        while time.monotonic() < began + seconds:
            driver.run(0.2)
            behind = time.time() - driver.watermark.micros / 1e6
            furthest_behind = max(furthest_behind, behind)
            assert behind < 5, "the watermark stands still"
    changes_per_second = changes_of(table) / (time.monotonic() - began)
    driver.run_until(time.time_ns())
    check(driver, table)
    campaign.record(
        "bigtable-sixteen-layout-changes",
        seconds=seconds,
        layout_changes_per_second=round(changes_per_second, 1),
        records=len(driver.committed),
        watermark_seconds_behind_at_most=round(furthest_behind, 2),
    )


@pytest.mark.long(seconds=5)
def test_broken_calls_wide_tokens_and_ends_without_a_close_lose_and_repeat_nothing(
    table: Any, writers: Callable[..., Any], campaign: Any
) -> None:
    rng = random.Random(campaign.seed)
    control = table.control
    control.chunk_bytes(table.name, 200)
    control.wide_tokens(table.name)
    control.churn(0.3, seed=campaign.seed, table=table.name)
    faults = [
        Fault.UNAVAILABLE,
        Fault.ABORTED,
        Fault.INTERNAL,
        Fault.END_WITHOUT_CLOSE,
        Fault.CLOSE_INTERNAL,
        Fault.CLOSE_WITHOUT_TOKENS,
        Fault.HALF_RECORD,
    ]
    driver, rounds = Epochs(table.reading(), 2), campaign.size(25, 400)
    with writers(table):
        for _ in range(rounds):
            control.fault(table.name, rng.choice(faults), after_records=rng.randrange(20))
            if rng.random() < 0.2:
                control.end_streams_without_close(table.name)
            driver.run(0.3, crash=rng.random() < 0.1)
    driver.run_until(time.time_ns())
    check(driver, table)
    assert driver.fn.check(driver.stream)
    campaign.record("bigtable-broken-calls", rounds=rounds, records=len(driver.committed))
