"""Why a test that is green on Beam's local runner is red here: by id, a line each."""

from __future__ import annotations

_FN_API = "tests.beam.fn_api_runner::FnApiRunnerTest::"
_TEST_STREAM = "apache_beam.testing.test_stream_test::"
_REVERSE = "a ReverseTestStream is the interactive runner's own primitive, pickled Python without a meaning to others"
_METRICS = "tests.beam.fn_api_runner_metrics::FnApiRunnerMetricsTest::"

REASONS: dict[str, str] = {
    _FN_API
    + "test_batch_rebatch_pardos": "the warning that it waits for is given in a worker, another process",
    _TEST_STREAM + "ReverseTestStreamTest::test_basic_execution": _REVERSE,
    _TEST_STREAM + "ReverseTestStreamTest::test_basic_execution_in_records_format": _REVERSE,
    _TEST_STREAM + "ReverseTestStreamTest::test_windowing": _REVERSE,
    _TEST_STREAM
    + "TestStreamTest::test_basic_execution_sideinputs_fixed_windows": "the side input's element comes when "
    "the watermark has passed its window and is dropped, as the model has it; DirectRunner keeps it",
    _TEST_STREAM
    + "TestStreamTest::test_windowed_values_interpreted_correctly": "elements that bring windows of their "
    "own do not fit the global window of their PCollection; only DirectRunner, which does not encode, lets them",
    _METRICS
    + "test_progress_metrics": "it reads `_monitoring_infos_by_stage`, a private field of FnApiRunner's result",
}
