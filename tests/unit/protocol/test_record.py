"""Commit records: what survives the bytes, and what is refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from penstock.parked import ParkedTable
from penstock.runner.protocol import (
    CheckpointError,
    CommitRecord,
    EarliestTimers,
    EpochState,
    Publication,
    Residual,
    StateRun,
    WatermarkKey,
)
from penstock.runner.protocol.record import ParkedPublications
from penstock.runner.protocol.record_codec import decode_record, encode_record, record_digest

STATE = EpochState(
    residuals=(Residual("Read/SDF", "e1", b"\x00\xff", 10, 20),),
    publications=(Publication("Write/Publish", b"moved"),),
    state_runs=(
        StateRun("Count", "0000000001-0000000002-ab-0123456789abcdef-00000-00063.run", 0, 63, 5, 8192, 7),
    ),
    timers=(EarliestTimers("Count", 0, 63, event_us=None, processing_us=5, hold_us=4),),
    watermarks={
        WatermarkKey.carried("Read"): -(2**63),
        WatermarkKey.input("Count"): 3,
        WatermarkKey.output("Count"): 2**63 - 1,
    },
    observed_watermarks={WatermarkKey.carried("Read"): -5},
    fired_impulses={"Create/Impulse": ("Read", "Seed")},
    schemas={"Count": {"keys": "StrUtf8Coder"}},
    metrics=(b"\x0a\xff",),
    draining=True,
    test_events_applied=2,
    test_clock_us=7,
    ended=(Residual("Read/SDF", "e0", b"\x01", 30, 0),),
)
RECORD = CommitRecord(7, 3, "process 1 on host", "ab" * 32, 1_700_000_000_000_000, "epoch", 4, STATE)


def test_a_record_comes_back_from_its_bytes():
    assert decode_record(encode_record(RECORD)) == RECORD


def test_a_record_without_ended_reads_does_not_mention_them():
    assert b"ended" in encode_record(RECORD)
    assert b"ended" not in encode_record(replace(RECORD, state=replace(STATE, ended=())))


def test_a_record_with_parked_tables_is_refused_by_versions_that_would_delete_their_files():
    table = ParkedTable("lake/orders", "public.orders", "refused", 5, 3, 99, True, b"\x00files", 7)
    parked = replace(RECORD, state=replace(STATE, parked=(ParkedPublications("Write/Publish", table),)))
    data = encode_record(parked)
    assert data.startswith(b"penstock-record 4 ")
    assert decode_record(data) == parked
    assert b"parked" not in encode_record(RECORD)


def test_equal_records_have_equal_bytes_for_any_order_of_their_mappings():
    turned = replace(RECORD, state=replace(STATE, watermarks=dict(reversed(STATE.watermarks.items()))))
    assert encode_record(turned) == encode_record(RECORD)


def test_the_digest_names_the_bytes():
    other = replace(RECORD, writer="process 2 on host")
    assert record_digest(encode_record(other)) != record_digest(encode_record(RECORD))


def test_fields_and_columns_that_a_newer_version_adds_are_ignored():
    body = json.loads(encode_record(RECORD).partition(b"\n")[2])
    body["from_the_future"] = 1
    body["residuals"][0].append("more")
    body["state_runs"][0].append("more")
    body["timers"][0].append("more")
    body["publications"][0].append("more")
    assert decode_record(_signed(body)) == RECORD


@pytest.mark.parametrize(
    ("other", "way_out"),
    [(1, "Drain the pipeline with the version of penstock that wrote"), (5, "Install a newer version")],
)
def test_another_format_is_refused_and_the_error_names_the_fix(other, way_out):
    data = encode_record(RECORD).replace(b"penstock-record 2 ", b"penstock-record %d " % other, 1)
    with pytest.raises(
        CheckpointError,
        match=rf"format {other}, and this version of penstock reads formats 2 to 4\. {way_out}",
    ):
        decode_record(data)


def test_a_watermark_of_one_kind_is_not_that_of_another_kind_with_the_same_step():
    state = replace(STATE, watermarks={WatermarkKey.input("Count"): 1, WatermarkKey.output("Count"): 2})
    assert decode_record(encode_record(replace(RECORD, state=state))).state.watermarks == state.watermarks


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: d + b" ", lambda d: d.replace(b"host", b"hose")]
)
def test_a_cut_or_changed_record_is_refused(damage):
    with pytest.raises(
        CheckpointError, match=r"is damaged: its checksum does not match. Restore the checkpoint"
    ):
        decode_record(damage(encode_record(RECORD)), source="record 7")


def test_bytes_that_are_not_a_record_are_refused():
    with pytest.raises(CheckpointError, match=r"record 7 is damaged: it does not begin like a commit record"):
        decode_record(b"\x00\x01", source="record 7")


def test_a_record_with_a_missing_field_is_refused():
    body = json.loads(encode_record(RECORD).partition(b"\n")[2])
    del body["writer"]
    with pytest.raises(CheckpointError, match=r"KeyError while reading it"):
        decode_record(_signed(body))


@pytest.mark.parametrize("left", ["residuals", "publications", "timers"])
def test_a_done_record_with_pending_work_is_refused(left):
    with pytest.raises(ValueError, match=rf"a state with 1 {left} is not done"):
        EpochState(**{left: getattr(STATE, left)}, done=True)


def test_timers_without_a_time_do_not_keep_a_pipeline_from_being_done():
    assert EpochState(timers=(EarliestTimers("Count", 0, 7, hold_us=5),), done=True).done


def test_a_generation_above_the_record_is_refused():
    with pytest.raises(ValueError, match=r"record 2 cannot be of generation 3"):
        replace(RECORD, number=2)


def _signed(body: dict) -> bytes:
    """The body as a record file with a right checksum."""
    data = json.dumps(body).encode()
    return f"penstock-record 2 {hashlib.sha256(data).hexdigest()}\n".encode() + data
