"""The transform and its DoFn: arguments, checkpoints of another stream, rebalancing and drains."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import registry
from apache_beam.runners.common import DoFnSignature
from apache_beam.utils.timestamp import Timestamp
from google.auth.credentials import AnonymousCredentials

from penstock.compat import UTC
from penstock.errors import SetupError
from penstock.io.change_streams.watermark import FrontierWatermarkEstimatorProvider, beam_watermark
from penstock.io.spanner import (
    ChangeStream,
    DataChangeRecord,
    DataChangeRecordCoder,
    ReadFromSpannerChangeStream,
)
from penstock.io.spanner.coder import ChangeStreamCoder
from penstock.io.spanner.frontier import Frontier
from penstock.io.spanner.position import Position
from penstock.io.spanner.read import ReadSpannerFn
from penstock.io.spanner.source import Connection
from penstock.io.spanner.tracker import SpannerTracker

SECOND = 1_000_000_000


def reading(**changes: Any) -> ReadFromSpannerChangeStream:
    arguments: dict[str, Any] = {"project": "p", "instance": "i", "database": "d", "change_stream": "S"}
    return ReadFromSpannerChangeStream(**{**arguments, **changes})


def test_importing_the_package_imports_no_google_cloud_client() -> None:
    program = "import sys, penstock.io.spanner\nprint([m for m in sys.modules if m.startswith('google.cloud.spanner')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_start_none_is_the_time_of_construction() -> None:
    before = time.time_ns()
    transform = reading()
    assert before <= transform.stream.start <= time.time_ns()
    assert transform.stream.start == transform.stream.start


@pytest.mark.parametrize(
    "moment",
    [
        "2026-01-02T03:04:05.000006Z",
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        datetime(2026, 1, 2, 4, 4, 5, 6, tzinfo=timezone(timedelta(hours=1))),
        1767323045000006000,
    ],
)
def test_start_and_end_may_be_text_datetimes_or_nanoseconds(moment: Any) -> None:
    stream = reading(start=moment, end=moment).stream
    assert stream.start == stream.end == 1767323045000006000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"project": ""}, "project must be a bare name"),
        ({"database": "projects/p/instances/i/databases/d"}, "database must be a bare name"),
        ({"change_stream": "READ S"}, "bare name from CREATE CHANGE STREAM"),
        ({"start": datetime(2026, 1, 1)}, "start .* has no time zone"),
        ({"start": "yesterday"}, "start: .* not an RFC 3339 timestamp"),
        ({"end": "2026-01-01Z"}, "end: .* not an RFC 3339 timestamp"),
        ({"start": 1767225600.0}, "start is a float: pass an aware datetime.* or integer nanoseconds"),
        ({"poll_seconds": "0.2"}, "poll_seconds='0.2' is out of range: pass a number"),
        ({"credentials": "key.json"}, "credentials must be a google.auth credentials object, not a str"),
        ({"plain_text": True}, "plain_text is for an api_endpoint"),
        ({"root_certificates": "ca.pem"}, "root_certificates is for an api_endpoint"),
        (
            {"api_endpoint": "host:1", "plain_text": True, "root_certificates": "ca.pem"},
            "plain_text and root_certificates are both given",
        ),
        (
            {"api_endpoint": "host:1", "client_certificate": "c.pem"},
            "client_certificate and client_key belong together",
        ),
        ({"rpc_priority": "URGENT"}, "rpc_priority='URGENT': pass one of LOW, MEDIUM, HIGH"),
        ({"dialect": "GOOGLESQL"}, "dialect must be GOOGLE_STANDARD_SQL or POSTGRESQL, not 'GOOGLESQL'"),
        ({"tables": "Orders"}, "tables='Orders' is not a list"),
        ({"mod_types": ["TRUNCATE"]}, "mod_types has TRUNCATE"),
        ({"include_replicas": ["US"]}, "include_replicas has 'US'"),
        ({"emulator_host": "localhost:1", "api_endpoint": "host:1"}, "pass one of them"),
        ({"start": time.time_ns() + 3600 * SECOND}, "in the future"),
        ({"start": 20, "end": 10}, "end .* is before start"),
        ({"heartbeat_seconds": 0.1}, "heartbeat_seconds=0.1 is out of range: pass a number from 1 to 300"),
        ({"poll_seconds": 0.001}, "poll_seconds=0.001 is out of range"),
        ({"max_concurrent_partitions": 1.5}, "max_concurrent_partitions=1.5 is not a whole number"),
        ({"unavailable_seconds": -1}, "unavailable_seconds=-1 is out of range"),
        ({"max_concurrent_partitions": 0}, "max_concurrent_partitions=0 is out of range"),
        ({"buffer_bytes": 1}, "buffer_bytes=1 is out of range"),
    ],
)
def test_bad_arguments_are_refused_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reading(**arguments)


def test_the_emulator_variable_is_read_when_the_pipeline_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANNER_EMULATOR_HOST", "localhost:1234")
    assert reading()._settings.connection.emulator_host == "localhost:1234"
    assert reading(emulator_host="localhost:5")._settings.connection.emulator_host == "localhost:5"
    assert reading(api_endpoint="spanner.internal:443")._settings.connection.emulator_host is None
    monkeypatch.delenv("SPANNER_EMULATOR_HOST")
    assert reading()._settings.connection.emulator_host is None


def test_connections_with_different_credentials_are_different_and_their_copies_equal() -> None:
    one = Connection.with_credentials(AnonymousCredentials())
    assert one != Connection.with_credentials(AnonymousCredentials())
    assert Connection.with_credentials(None) == Connection.with_credentials(None)
    assert "Anonymous" not in repr(one), "credentials must not show in messages"


def test_output_is_bounded_only_with_an_end_and_typed() -> None:
    pipeline = beam.Pipeline()
    forever = pipeline | "forever" >> reading()
    bounded = pipeline | "bounded" >> reading(start=0, end=1)
    assert (forever.is_bounded, bounded.is_bounded) == (False, True)
    assert forever.element_type is DataChangeRecord
    assert isinstance(registry.get_coder(DataChangeRecord), DataChangeRecordCoder)


def test_the_dofn_is_its_own_restriction_provider_with_rebalance() -> None:
    fn = ReadSpannerFn(reading()._settings)
    provider = DoFnSignature(fn).get_restriction_provider()
    assert provider is fn
    assert callable(provider.rebalance)


def test_element_survives_its_coder_and_equal_elements_have_equal_bytes() -> None:
    coder = registry.get_coder(ChangeStream)
    assert isinstance(coder, ChangeStreamCoder)
    assert coder.is_deterministic()
    for end in (None, 7):
        stream = ChangeStream("p", "i", "d", "S", 5, end)
        assert coder.decode(coder.encode(stream)) == stream
    assert (
        coder.encode(ChangeStream("p", "i", "d", "S", 5, None)) == b'[1,"spanner","p","i","d","S",5,null,""]'
    )
    with pytest.raises(ValueError, match="format version 9"):
        coder.decode(b'[9,"p"]')


def test_rebalance_deals_over_the_slots_and_keeps_the_watermark() -> None:
    fn = ReadSpannerFn(reading()._settings)
    whole = Frontier({token: Position(n * SECOND) for n, token in enumerate("abcde", 1)}, {})
    residuals = [(part, Timestamp(1)) for part in whole.deal(2)]
    parts = fn.rebalance(None, residuals, 3)  # type: ignore[arg-type]
    assert len(parts) == 3
    assert Frontier.join([part for part, _ in parts]) == whole
    assert [state for _, state in parts] == [beam_watermark(part.watermark) for part, _ in parts]
    assert min(state for _, state in parts) == Timestamp(1)


def test_a_checkpoint_of_another_change_stream_is_refused_before_anything_is_read() -> None:
    before, now = reading(start=1), reading(start=1, change_stream="T")
    fn, frontier = ReadSpannerFn(now._settings), Frontier.starting_at(1, None)
    estimator = FrontierWatermarkEstimatorProvider().create_watermark_estimator(beam_watermark(0))
    with pytest.raises(SetupError, match=r"checkpoint .* change stream S of .* change stream T of .*"):
        next(fn.process(before.stream, SpannerTracker(frontier), estimator))


@pytest.mark.parametrize(("was", "now"), [(9, 7), (None, 9)])
def test_a_checkpoint_with_a_later_end_is_refused_before_anything_is_read(
    was: int | None, now: int | None
) -> None:
    before, after = reading(start=1, end=was), reading(start=1, end=now)
    fn, frontier = ReadSpannerFn(after._settings), Frontier.starting_at(1, None)
    estimator = FrontierWatermarkEstimatorProvider().create_watermark_estimator(beam_watermark(0))
    ends = {7: r"to 1970\S*7Z", 9: r"to 1970\S*9Z", None: "without end"}
    with pytest.raises(
        SetupError, match=f"belongs to the .* {ends[was]}, but the program reads .* {ends[now]}. Change"
    ):
        next(fn.process(before.stream, SpannerTracker(frontier), estimator))


def test_rebalance_of_a_finished_read_returns_no_residuals() -> None:
    fn = ReadSpannerFn(reading()._settings)
    assert fn.rebalance(None, [], 3) == []  # type: ignore[arg-type]
    assert fn.rebalance(None, [(Frontier({}, {}), Timestamp(1))], 3) == []  # type: ignore[arg-type]


def test_drain_lets_bounded_reads_finish_and_ends_unbounded_ones() -> None:
    fn = ReadSpannerFn(reading()._settings)
    bounded = Frontier.starting_at(0, 9)
    assert fn.truncate(None, bounded) == bounded
    assert fn.truncate(None, Frontier.starting_at(0)) is None
    assert fn.restriction_size(None, bounded) == 1.0  # type: ignore[arg-type]
