"""Why tests that are green on Beam's local runner are red on Spark: by id, or by what an id begins with."""

from __future__ import annotations

_FN_API = "tests.beam.fn_api_runner::FnApiRunnerTest::"
_METRICS = "tests.beam.fn_api_runner_metrics::FnApiRunnerMetricsTest::"
_TEST_STREAM = "apache_beam.testing.test_stream_test::"
_TRANSFORMS = "apache_beam.transforms."

_PROCESS = "it looks at what its DoFns leave in a variable of their process; here that is a worker"
_BUNDLE = "it expects one bundle; here a PCollection is in two parts"
_ORDER = "it expects the order in which the elements were given"

REASONS: dict[str, str] = {
    _TEST_STREAM
    + "ReverseTestStreamTest::": "a ReverseTestStream is the interactive runner's own primitive, pickled "
    "Python without a meaning to others",
    _TEST_STREAM
    + "TestStreamTest::test_basic_execution_sideinputs_fixed_windows": "the side input's element comes when "
    "the watermark has passed its window and is dropped, as the model has it; DirectRunner keeps it",
    _TEST_STREAM
    + "TestStreamTest::test_windowed_values_interpreted_correctly": "elements that bring windows of their "
    "own do not fit the global window of their PCollection; only DirectRunner, which does not encode, lets them",
    _METRICS
    + "test_progress_metrics": "it reads `_monitoring_infos_by_stage`, a private field of FnApiRunner's result",
}


def reason(test: str) -> str:
    """The reason for a test; of those that fit the most particular one."""
    found = [start for start in REASONS if test.startswith(start)]
    return REASONS[max(found, key=len)] if found else "not explained"
