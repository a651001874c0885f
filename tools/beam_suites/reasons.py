"""Reasons why tests that pass on Beam's local runner fail on Spark, by test id or by prefix of test ids."""

from __future__ import annotations

_FN_API = "tools.beam_suites.fn_api_runner::FnApiRunnerTest::"
_METRICS = "tools.beam_suites.fn_api_runner_metrics::FnApiRunnerMetricsTest::"
_TEST_STREAM = "apache_beam.testing.test_stream_test::"
_TRANSFORMS = "apache_beam.transforms."

_PROCESS = "it reads a variable that its DoFns set in their process; here they run in a worker process"
_BUNDLE = "it expects one bundle, or one worker; here a PCollection has two partitions"
_MILLISECONDS = (
    "it expects window ends rounded down to milliseconds, as Beam's coder does; here microseconds are kept"
)
_OLDER = "it requests the Reshuffle of an older Beam version, which loses pane infos; here they are kept"

REASONS: dict[str, str] = {
    _TEST_STREAM + "ReverseTestStreamTest::": "a ReverseTestStream is a primitive of the interactive runner: "
    "pickled Python that no other runner can read",
    _TEST_STREAM
    + "TestStreamTest::test_basic_execution_sideinputs_fixed_windows": "the side input's element arrives "
    "after the watermark has passed its window and is dropped, as Beam's model requires; DirectRunner keeps it",
    _TEST_STREAM
    + "TestStreamTest::test_windowed_values_interpreted_correctly": "elements that are given other windows "
    "arrive in the global window, the window type of their PCollection; only DirectRunner, which does not encode "
    "elements, keeps the other windows",
    _METRICS
    + "test_progress_metrics": "it reads `_monitoring_infos_by_stage`, a private field of FnApiRunner's result",
    _TRANSFORMS
    + "error_handling_test::ErrorHandlingTest::test_error_handling_pardo_with_exception_handling_kwargs": _PROCESS,
    _TRANSFORMS + "ptransform_test::PTransformTest::test_do_fn_with_": _BUNDLE,
    _TRANSFORMS
    + "ptransform_test::PTransformTest::test_group_by_key_deterministic_coder": "the test adds its class to "
    "the module at run time; a worker imports the module without that class",
    _TRANSFORMS
    + "ptransform_test::PTransformTypeCheckTestCase::test_combine_runtime_type_check_violation_using_decorators": "two "
    "bundles give two sums of the wrong type, and adding them fails before the result is checked",
    _TRANSFORMS
    + "sideinputs_test::SideInputsTest::test_multi_triggered_gbk_side_input": "the side input is ready after its first "
    "pane, an early one, as Beam's model requires; DirectRunner waits for the end of the window",
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
    "a worker creates a type from the schema, as Beam's own workers do",
}


def reason(test: str) -> str:
    """Return the reason for a test. If several prefixes match, the longest one is used."""
    found = [start for start in REASONS if test.startswith(start)]
    return REASONS[max(found, key=len)] if found else "not explained"
