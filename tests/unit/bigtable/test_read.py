"""The transform and its DoFn: arguments, checkpoints of another stream, rebalancing, and no values in messages."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from typing import Any

import apache_beam as beam
import pytest

from penstock.compat import UTC
from penstock.errors import SetupError
from penstock.io.bigtable import ChangeStreamMutation, ReadFromBigtableChangeStream
from penstock.io.bigtable.frontier import Frontier
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.read import ReadBigtableFn
from penstock.io.bigtable.tracker import BigtableTracker
from penstock.io.change_streams.watermark import FrontierWatermarkEstimatorProvider, beam_watermark
from penstock.timestamps import nanoseconds

NAMES: dict[str, Any] = {"project": "p", "instance": "i", "table": "t"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"project": "projects/p"}, "project must be a bare name"),
        ({"app_profile": ""}, "app_profile must be a bare name"),
        ({"start": "2026-01-01"}, "is not an RFC 3339 timestamp"),
        ({"row_range": ("a", "b")}, "row keys of a range must be bytes"),
        ({"start": datetime(2026, 1, 1)}, "pass an aware datetime"),
        ({"start": "2999-01-01T00:00:00Z"}, "in the future"),
        ({"start": 10, "end": 9}, "is before start"),
        ({"row_range": (b"b", b"a")}, "must end after its start"),
        ({"families": "cf"}, r"pass \['cf'\]"),
        ({"columns": ["cf"]}, "has no family"),
        ({"ignored_columns": "cf:a"}, r"ignored_columns must be a list .* pass \['cf:a'\]"),
        ({"heartbeat_seconds": 0.01}, "heartbeat_seconds=0.01 is out of range"),
        ({"max_concurrent_partitions": 0}, "max_concurrent_partitions=0 is out of range"),
        ({"merge_wait_seconds": 0}, "merge_wait_seconds=0 is out of range"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_fix(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReadFromBigtableChangeStream(**{**NAMES, **wrong})


def test_the_emulator_variable_is_read_when_the_transform_is_constructed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "localhost:1")
    assert ReadFromBigtableChangeStream(**NAMES)._settings.connection.emulator_host == "localhost:1"
    own = ReadFromBigtableChangeStream(**NAMES, api_endpoint="example:443")
    assert own._settings.connection.emulator_host is None


def test_times_may_be_datetimes_texts_or_nanoseconds() -> None:
    moments = [datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00Z", 1769860800 * 10**9]
    assert len({nanoseconds("start", moment) for moment in moments}) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(("end", "bounded"), [(None, False), (2, True)])
def test_the_output_is_bounded_when_there_is_an_end(end: int | None, bounded: bool) -> None:
    pipeline = beam.Pipeline()
    output = pipeline | ReadFromBigtableChangeStream(**NAMES, start=1, end=end)
    assert output.is_bounded == bounded
    assert output.element_type is ChangeStreamMutation
    assert isinstance(beam.coders.registry.get_coder(output.element_type).is_deterministic(), bool)


def test_rebalance_joins_all_residuals_and_deals_them_over_the_slots() -> None:
    fn = ReadBigtableFn(None)  # type: ignore[arg-type] - no settings are needed
    parts = [KeyRange(b"", b"g"), KeyRange(b"g", b"m"), KeyRange(b"m", b"")]
    frontier = Frontier.starting_at(5_000_000, parts)
    dealt = fn.rebalance(None, [(frontier, beam_watermark(1))], 2)  # type: ignore[arg-type]
    assert [state for _, state in dealt] == [beam_watermark(5_000_000)] * 2
    assert fn.rebalance(None, dealt, 1)[0][0] == frontier  # type: ignore[arg-type]
    assert fn.rebalance(None, [], 2) == []  # type: ignore[arg-type]


def test_a_checkpoint_of_another_table_is_refused_before_anything_is_read() -> None:
    before, now = (ReadFromBigtableChangeStream(**{**NAMES, "table": table}, start=1) for table in ("t", "u"))
    fn, frontier = ReadBigtableFn(now._settings), Frontier.starting_at(1, [KeyRange(b"", b"")])
    estimator = FrontierWatermarkEstimatorProvider().create_watermark_estimator(beam_watermark(0))
    with pytest.raises(SetupError, match=r"checkpoint .* change stream of .*/tables/t, .* of .*/tables/u, "):
        next(fn.process(before.stream, BigtableTracker(frontier), estimator))


@pytest.mark.parametrize(("was", "now"), [(9, 7), (None, 9)])
def test_a_checkpoint_with_a_later_end_is_refused_before_anything_is_read(
    was: int | None, now: int | None
) -> None:
    before, after = (ReadFromBigtableChangeStream(**NAMES, start=1, end=end) for end in (was, now))
    fn, frontier = ReadBigtableFn(after._settings), Frontier.starting_at(1, [KeyRange(b"", b"")])
    estimator = FrontierWatermarkEstimatorProvider().create_watermark_estimator(beam_watermark(0))
    ends = {7: r"to 1970\S*7Z", 9: r"to 1970\S*9Z", None: "without end"}
    with pytest.raises(
        SetupError, match=f"belongs to the .* {ends[was]}, but the program reads .* {ends[now]}. Change"
    ):
        next(fn.process(before.stream, BigtableTracker(frontier), estimator))


def test_a_read_that_follows_an_end_starts_a_microsecond_later() -> None:
    """The service rounds times down to microseconds."""
    was, now = (ReadFromBigtableChangeStream(**NAMES, start=1, end=end) for end in (7_000_500, None))
    following = ReadBigtableFn(now._settings).read_on(was.stream)
    assert (following.start, following.end) == (7_001_000, None)


def test_importing_the_package_imports_no_cloud_client() -> None:
    code = "import sys, penstock.io.bigtable; print([m for m in sys.modules if m.startswith('google.cloud.bigtable')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_neither_row_keys_nor_values_are_shown() -> None:
    from penstock.io.bigtable.keys import abbreviate
    from penstock.io.bigtable.record import MutationType, SetCell

    entry = SetCell("f", b"q", 0, b"secret")
    record = ChangeStreamMutation(b"secret", MutationType.USER, "c", 1, 0, "t", 1, (entry,))
    assert "secret" not in repr(record)
    assert abbreviate(KeyRange(b"secret-key", b"")) == "['secret…', end)"
