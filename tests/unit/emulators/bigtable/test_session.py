"""What one stream says, with a clock that is set by hand."""

from __future__ import annotations

import pytest
from google.cloud.bigtable_v2.types import bigtable as api

from penstock_emulators.bigtable.faults import Armed, Fault
from penstock_emulators.bigtable.layout import KeyRange, Layout
from penstock_emulators.bigtable.session import RequestError, Session, _widened
from penstock_emulators.bigtable.table import DAY_US, ChangeStream
from penstock_emulators.bigtable.tokens import Part, cut
from penstock_emulators.bigtable.wire import Mutation, Origin, Response, partition_message

OUT_OF_RANGE, INVALID_ARGUMENT = 11, 3


class Time:
    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.now_us


class Scene:
    """A stream, its clock and requests for it."""

    def __init__(self) -> None:
        self.time = Time()
        self.stream = ChangeStream(DAY_US, Layout.whole(), self.time)
        self.start_us = self.time.now_us

    def write(self, *keys: bytes, value: bytes = b"") -> None:
        mutation = Mutation()
        mutation.set_cell.value = value
        self.time.now_us += 10
        self.stream.append([(key, [mutation]) for key in keys], Origin("c"), self.time.now_us)

    def request(self, **options: int):
        request = api.ReadChangeStreamRequest.pb()(partition=partition_message(KeyRange(b"", b"")))
        request.start_time.FromMicroseconds(options.get("start_us", self.start_us))
        if "end_us" in options:
            request.end_time.FromMicroseconds(options["end_us"])
        if "heartbeat_us" in options:
            request.heartbeat_duration.FromMicroseconds(options["heartbeat_us"])
        return request

    def open(self, **options: int) -> Session:
        return Session.open(self.stream, self.request(**options), self.time.now_us)

    def refused(self, request) -> int:
        with pytest.raises(RequestError) as refusal:
            Session.open(self.stream, request, self.time.now_us)
        return refusal.value.status.code


def said(step) -> list:
    return [Response.FromString(response) for response in step.responses]


def keys(step) -> list[bytes]:
    return [answer.data_change.row_key for answer in said(step) if answer.HasField("data_change")]


@pytest.mark.parametrize("field", ["start_time", "end_time"])
def test_a_time_outside_the_calendar_is_refused(field: str) -> None:
    scene = Scene()
    request = scene.request()
    getattr(request, field).seconds = 1 << 60
    assert scene.refused(request) == INVALID_ARGUMENT


def test_positions_older_than_the_retention_period_are_out_of_range() -> None:
    scene = Scene()
    scene.write(b"a")
    lagging = scene.open()
    token = said(scene.open().step(scene.time.now_us))[0].data_change.token
    resumed = scene.request()
    resumed.continuation_tokens.tokens.add(partition=resumed.partition, token=token)
    scene.time.now_us += DAY_US - 20
    assert Session.open(scene.stream, resumed, scene.time.now_us)
    scene.time.now_us += 30
    assert scene.refused(resumed) == OUT_OF_RANGE
    assert scene.refused(scene.request()) == OUT_OF_RANGE
    ended = lagging.step(scene.time.now_us).end
    assert ended is not None
    assert ended.code == OUT_OF_RANGE


def test_a_stream_that_keeps_up_lives_longer_than_the_retention_period() -> None:
    scene = Scene()
    scene.write(b"a")
    session = scene.open()
    assert keys(session.step(scene.time.now_us)) == [b"a"]
    scene.time.now_us += 2 * DAY_US
    step = session.step(scene.time.now_us)
    assert step.end is None
    assert said(step)[0].heartbeat.estimated_low_watermark.ToMicroseconds() == scene.time.now_us


def test_the_close_at_the_end_time_waits_until_the_end_time_has_passed() -> None:
    scene = Scene()
    end_us = scene.time.now_us + 100
    session = scene.open(end_us=end_us)
    assert session.step(scene.time.now_us).idle_until_us == end_us + 1
    scene.time.now_us = end_us
    assert session.step(end_us).end is None, "a write may still get this very timestamp"
    scene.time.now_us = end_us + 1
    (close,) = said(session.step(end_us + 1))
    assert close.close_stream.status.code == 0


def test_the_heartbeat_interval_is_five_seconds_by_default_and_at_least_50_ms() -> None:
    scene = Scene()
    for asked, given in ((0, 5_000_000), (1_000_000, 1_000_000), (1, 50_000)):
        session = scene.open(heartbeat_us=asked)
        assert session.step(scene.time.now_us).idle_until_us == scene.time.now_us + given


def test_a_lagging_stream_is_not_idle_and_its_watermark_stays_below_its_unsent_records() -> None:
    scene = Scene()
    scene.write(*(b"%03d" % number for number in range(200)))
    scene.time.now_us += 10_000_000
    session = scene.open(heartbeat_us=50_000)
    scene.time.now_us += 60_000
    step = session.step(scene.time.now_us)
    *changes, beat = said(step)
    assert (len(changes), step.idle_until_us) == (64, 0)
    last_us = changes[-1].data_change.commit_timestamp.ToMicroseconds()
    assert beat.heartbeat.estimated_low_watermark.ToMicroseconds() == last_us


def test_invalid_requests_are_refused() -> None:
    scene = Scene()
    assert scene.refused(scene.request(heartbeat_us=-1)) == INVALID_ARGUMENT
    assert scene.refused(scene.request(start_us=scene.time.now_us + 1)) == INVALID_ARGUMENT
    assert scene.refused(scene.request(start_us=scene.start_us - 1)) == OUT_OF_RANGE
    for bound in ("start_key_open", "end_key_closed"):
        request = scene.request()
        setattr(request.partition.row_range, bound, b"a")
        assert scene.refused(request) == INVALID_ARGUMENT
    request = scene.request()
    request.partition.row_range.start_key_closed = b"b"
    request.partition.row_range.end_key_open = b"a"
    assert scene.refused(request) == INVALID_ARGUMENT


def test_damage_to_chunks_waits_for_a_record_with_chunks() -> None:
    scene = Scene()
    scene.stream.chunk_bytes = 4
    scene.stream.faults.append(Armed(Fault.WRONG_CHUNK_OFFSET))
    session = scene.open()
    scene.write(b"plain")
    assert keys(session.step(scene.time.now_us)) == [b"plain"]
    scene.write(b"chunked", value=b"0123456789")
    step = session.step(scene.time.now_us)
    assert said(step)[1].data_change.chunks[0].chunk_info.chunked_value_offset == 5
    assert step.end is not None
    assert not scene.stream.faults


def test_a_fault_occurs_after_a_stream_has_sent_the_given_number_of_records() -> None:
    scene = Scene()
    scene.stream.faults.append(Armed(Fault.ABORTED, after_records=2))
    session = scene.open()
    scene.write(b"a")
    assert session.step(scene.time.now_us).end is None
    scene.write(b"b")
    step = session.step(scene.time.now_us)
    assert (keys(step), step.idle_until_us) == ([b"b"], 0)
    ended = session.step(scene.time.now_us).end
    assert ended is not None
    assert ended.code == 10


def test_a_wide_token_is_exact_inside_its_keys_and_repeats_records_only_outside_them() -> None:
    own = (Part(KeyRange(b"d", b"g"), 50), Part(KeyRange(b"g", b"m"), 100))
    wide = _widened(own, KeyRange(b"a", b""))
    assert cut(wide, KeyRange(b"d", b"m")) == own
    assert {part.sequence for part in cut(wide, KeyRange(b"a", b"d")) + cut(wide, KeyRange(b"m", b""))} == {
        50
    }
