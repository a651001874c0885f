"""Why tests that are green on Beam's local runner are red on Spark: by id, or by what an id begins with."""

from __future__ import annotations

_FN_API = "tests.beam.fn_api_runner::FnApiRunnerTest::"
_METRICS = "tests.beam.fn_api_runner_metrics::FnApiRunnerMetricsTest::"
_TEST_STREAM = "apache_beam.testing.test_stream_test::"
_TRANSFORMS = "apache_beam.transforms."

_PROCESS = "it looks at what its DoFns leave in a variable of their process; here that is a worker"
_BUNDLE = "it expects one bundle, or one worker; here a PCollection is in two parts"
_MILLISECONDS = (
    "it expects the end of a window cut to milliseconds, as Beam's coder does; here microseconds are kept"
)
_OLDER = "it asks for an older Beam's Reshuffle, which loses pane infos; here they are kept"

REASONS: dict[str, str] = {
    _TEST_STREAM
    + "ReverseTestStreamTest::": "a ReverseTestStream is the interactive runner's own primitive, pickled "
    "Python without a meaning to others",
    _TEST_STREAM
    + "TestStreamTest::test_basic_execution_sideinputs_fixed_windows": "the side input's element comes when "
    "the watermark has passed its window and is dropped, as the model has it; DirectRunner keeps it",
    _TEST_STREAM
    + "TestStreamTest::test_windowed_values_interpreted_correctly": "elements that bring windows of their "
    "own come in the global window, which their PCollection has; only DirectRunner, which does not encode, keeps them",
    _METRICS
    + "test_progress_metrics": "it reads `_monitoring_infos_by_stage`, a private field of FnApiRunner's result",
    _TRANSFORMS
    + "error_handling_test::ErrorHandlingTest::test_error_handling_pardo_with_exception_handling_kwargs": _PROCESS,
    _TRANSFORMS + "ptransform_test::PTransformTest::test_do_fn_with_": _BUNDLE,
    _TRANSFORMS
    + "ptransform_test::PTransformTest::test_group_by_key_deterministic_coder": "its class is put into "
    "the module while the test runs; a worker imports the module without it",
    _TRANSFORMS
    + "ptransform_test::PTransformTypeCheckTestCase::test_combine_runtime_type_check_violation_using_decorators": "two "
    "bundles make two sums of the wrong type, and adding them fails before the check of the result",
    _TRANSFORMS
    + "sideinputs_test::SideInputsTest::test_multi_triggered_gbk_side_input": "the side input is ready with its first "
    "pane, an early one, as the model has it; DirectRunner waits for the end of its window",
    _TRANSFORMS + "userstate_test::StatefulDoFnOnDirectRunnerTest::": _PROCESS,
    _TRANSFORMS + "util_test::BatchElementsTest::": _BUNDLE,
    _TRANSFORMS
    + "util_test::LogElementsTest::": "it reads the log or the standard output of its own process",
    _TRANSFORMS + "util_test::ReshuffleTest::test_reshuffle_custom_window_preserves_metadata_1": _OLDER,
    _TRANSFORMS + "util_test::ReshuffleTest::test_reshuffle_default_window_preserves_metadata_1": _OLDER,
    _TRANSFORMS + "util_test::ReshuffleTest::test_reshuffle_window_fn_preserved": _MILLISECONDS,
    _TRANSFORMS + "util_test::ReshuffleTest::test_reshuffle_windows_unchanged": _MILLISECONDS,
    _TRANSFORMS + "util_test::TeeTest::": _PROCESS,
    _TRANSFORMS + "util_test::WaitOnTest::test_find": _PROCESS,
    "apache_beam.typehints.row_type_test::RowTypeTest::": "its type is registered in the process of the test; "
    "a worker makes one of the schema, as Beam's own workers do",
}


def reason(test: str) -> str:
    """The reason for a test; of those that fit the most particular one."""
    found = [start for start in REASONS if test.startswith(start)]
    return REASONS[max(found, key=len)] if found else "not explained"
