"""Every record can be decoded from its bytes, and a damaged record is always refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from penstock.runner.protocol.record import WatermarkKind
from penstock.runner.protocol.record_codec import decode_record, encode_record

MICROS = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(max_size=8)
KEY_GROUPS = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)
RESIDUALS = st.builds(Residual, NAMES, NAMES, st.binary(max_size=9), MICROS, MICROS)
PUBLICATIONS = st.builds(Publication, NAMES, st.binary(max_size=9))
RUNS = st.builds(
    lambda stage, name, groups, numbers: StateRun(stage, name, *groups, *numbers),
    NAMES,
    NAMES,
    KEY_GROUPS,
    st.tuples(*[st.integers(0, 2**40)] * 4),
)
TIMERS = st.builds(
    lambda stage, groups, times: EarliestTimers(stage, *groups, *times),
    NAMES,
    KEY_GROUPS,
    st.tuples(*[st.none() | MICROS] * 3),
)


def tuples(values):
    return st.lists(values, max_size=3).map(tuple)


WATERMARKS = st.dictionaries(
    st.builds(WatermarkKey, st.sampled_from(WatermarkKind), NAMES), MICROS, max_size=3
)
STATES = st.builds(
    EpochState,
    tuples(RESIDUALS),
    tuples(PUBLICATIONS),
    tuples(RUNS),
    tuples(TIMERS),
    WATERMARKS,
    WATERMARKS,
    st.dictionaries(NAMES, tuples(NAMES), max_size=3),
    st.dictionaries(NAMES, st.dictionaries(NAMES, NAMES, max_size=3), max_size=3),
    tuples(st.binary(max_size=9)),
    st.booleans(),
    st.integers(0, 99),
    MICROS,
)
RECORDS = st.builds(
    lambda generation, after, writer, parent, when, kind, epochs, state: CommitRecord(
        generation + after, generation, writer, parent, when, kind, epochs, state
    ),
    st.integers(1, 99),
    st.integers(0, 99),
    NAMES,
    st.none() | NAMES,
    MICROS,
    st.sampled_from(["initial", "takeover", "epoch"]),
    st.integers(0, 99),
    STATES,
)


@given(RECORDS)
def test_a_record_comes_back_from_its_bytes(record):
    assert decode_record(encode_record(record)) == record


@given(RECORDS)
def test_reading_and_writing_again_gives_the_same_bytes(record):
    data = encode_record(record)
    assert encode_record(decode_record(data)) == data


@given(RECORDS, st.data())
def test_no_cut_or_changed_record_is_ever_read(record, data):
    good = encode_record(record)
    if data.draw(st.booleans()):
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    else:
        at = data.draw(st.integers(0, len(good) - 1))
        bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    with pytest.raises(CheckpointError):
        decode_record(bad)
