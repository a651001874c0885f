"""Why a test that is green on Beam's local runner is red here: by id, a line each."""

from __future__ import annotations

_FN_API = "tests.beam.fn_api_runner::FnApiRunnerTest::"
_METRICS = "tests.beam.fn_api_runner_metrics::FnApiRunnerMetricsTest::"

REASONS: dict[str, str] = {
    _FN_API
    + "test_batch_rebatch_pardos": "the warning that it waits for is given in a worker, another process",
    _METRICS
    + "test_progress_metrics": "it reads `_monitoring_infos_by_stage`, a private field of FnApiRunner's result",
}
