"""Every record comes back from its bytes, and a damaged one never does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runner.protocol import (
    CheckpointError,
    CommitRecord,
    EpochState,
    Publication,
    Residual,
    StateRun,
    Timers,
)
from penstock.runner.protocol.record import decode_record, encode_record

MICROS = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(max_size=8)
KEY_GROUPS = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)
JSON = st.recursive(
    st.none() | st.booleans() | MICROS | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
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
    lambda stage, groups, event, processing: Timers(stage, *groups, event, processing),
    NAMES,
    KEY_GROUPS,
    st.none() | MICROS,
    st.none() | MICROS,
)


def tuples(values):
    return st.lists(values, max_size=3).map(tuple)


STATES = st.builds(
    EpochState,
    tuples(RESIDUALS),
    tuples(PUBLICATIONS),
    tuples(RUNS),
    tuples(TIMERS),
    st.dictionaries(NAMES, MICROS, max_size=3),
    JSON,
    st.dictionaries(NAMES, JSON, max_size=3),
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
