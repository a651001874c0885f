"""Elements keep their microseconds on every way that the runner sends or keeps them."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.transforms import window
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming, WindowedValue
from hypothesis import given
from hypothesis import strategies as st

from penstock.runner.harness.elements import ElementCoder
from tests.simulation.batch import run_batch
from tests.simulation.stream import run_stream

CODER: Any = ElementCoder(coders.BytesCoder(), coders.coders.IntervalWindowCoder()).get_impl()
LATE = PaneInfo(False, True, PaneInfoTiming.LATE, 3, 1)
seen: list[int] = []


@given(
    st.lists(
        st.tuples(
            st.integers(MIN_TIMESTAMP.micros, MAX_TIMESTAMP.micros - 1000) | st.integers(-9999, 9999),
            st.binary(),
        ),
        max_size=5,
    )
)
def test_elements_come_out_of_a_block_as_they_went_in(pairs: list[tuple[int, bytes]]) -> None:
    within = (window.IntervalWindow(-1, 1), window.IntervalWindow(5, 6))
    elements = [WindowedValue(data, Timestamp(micros=at), within, LATE) for at, data in pairs]
    stream = coder_impl.create_OutputStream()
    for element in elements:
        CODER.encode_to_stream(element, stream, True)
    back = coder_impl.create_InputStream(stream.get())
    assert [CODER.decode_from_stream(back, True) for _ in elements] == elements
    assert back.size() == 0


@pytest.mark.parametrize(
    "at", [MIN_TIMESTAMP, MAX_TIMESTAMP, window.GlobalWindow().max_timestamp()], ids=["min", "max", "global"]
)
def test_minimum_and_maximum_timestamps_are_preserved(at: Timestamp) -> None:
    element = WindowedValue(b"", at, (window.IntervalWindow(0, 1),))
    assert CODER.decode_nested(CODER.encode_nested(element)) == element


def _note(pair: Any, at: Any = beam.DoFn.TimestampParam) -> Any:
    seen.append(at.micros)
    return pair


@pytest.mark.parametrize("run", [run_batch, run_stream], ids=["batch", "stream"])
@pytest.mark.parametrize("way", [beam.Reshuffle, beam.GroupByKey], ids=["reshuffle", "group"])
def test_a_timestamp_of_microseconds_crosses_an_exchange(run: Any, way: Any) -> None:
    at = 1_700_000_000_123_457
    seen.clear()

    def build(pipeline: beam.Pipeline) -> None:
        pairs = pipeline | beam.Create([("k", 1)])
        stamped = pairs | beam.Map(lambda pair: window.TimestampedValue(pair, Timestamp(micros=at)))
        earliest = window.TimestampCombiner.OUTPUT_AT_EARLIEST
        windowed = stamped | beam.WindowInto(window.FixedWindows(10), timestamp_combiner=earliest)
        _ = windowed | way() | beam.Map(_note)

    run(build)
    assert seen == [at]
