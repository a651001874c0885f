"""The function that tells the target of `WriteToSpark` until when it is complete."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.attempt import offering_staging
from penstock.compat import UTC
from penstock.errors import UsageError
from penstock.io.spark import WriteToSpark
from penstock.io.spark.target import SparkFunctionTarget
from penstock.io.staging.publish_epochs import PublishBatches

NOON_US = 1_769_860_800_000_000
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def write(dataframe: Any, epoch_id: int) -> None:
    """Write nothing."""


def test_the_function_gets_the_exact_time_and_the_number_of_the_record(tmp_path: Path) -> None:
    calls: list[tuple[datetime, int]] = []
    target = SparkFunctionTarget(write, marks=lambda until, record: calls.append((until, record)))
    sink = PublishBatches(target, "sink", None, 10.0)
    with offering_staging(str(tmp_path)):
        sink.mark_complete("job", 7, NOON_US + 1)
    assert calls == [(NOON + timedelta(microseconds=1), 7)]


def test_without_a_function_nothing_is_called(tmp_path: Path) -> None:
    with offering_staging(str(tmp_path)):
        PublishBatches(SparkFunctionTarget(write), "sink", None, 10.0).mark_complete("job", 7, NOON_US)


def test_a_flag_instead_of_a_function_is_refused_by_name() -> None:
    with pytest.raises(
        UsageError, match="mark_complete must be a function .complete_until, record., got True"
    ):
        WriteToSpark(write, mark_complete=True)  # type: ignore[arg-type]
