"""Error messages when Spark fails: the cause and the fix."""

from __future__ import annotations

import pytest

from penstock.runner.spark.diagnosis import (
    Limits,
    context_failure,
    job_failure,
    jvm_lost,
    limit_remedy,
    session_ended,
    start_failure,
)
from penstock.runner.spark.errors import SparkJobError, SparkLostError, WorkerSetupError

NO_HEAP = "Error occurred during initialization of VM\nCould not reserve enough space for object heap"
ABORTED = (
    "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 7.0 failed 4 times, most "
    "recent failure: Lost task 1.3 in stage 7.0 (TID 9) (localhost executor driver): "
)


def stage_name(stage: int) -> str | None:
    return "epoch 5, level 1 of 2: Read orders" if stage == 7 else None


def failure_of(text: str) -> str:
    return str(job_failure(ABORTED + text, stage_name))


def test_a_limit_of_open_files_is_named_with_the_command_that_raises_it() -> None:
    told = start_failure("java.lang.NoClassDefFoundError", 1, Limits(open_files=256))
    assert "the limit of open files is 256 and Spark needs at least 1024" in told
    assert "ulimit -n 65536" in told


def test_a_limit_of_memory_is_named_only_where_the_jvm_ran_into_it() -> None:
    limits = Limits(open_files=4096, address_space_bytes=2_000_000 << 10)
    assert "ulimit -v unlimited" in str(limit_remedy(NO_HEAP, limits))
    assert "2000000 KiB" in str(limit_remedy(NO_HEAP, limits))
    assert limit_remedy("Unrecognized VM option 'Foo'", limits) is None


def test_a_machine_without_memory_is_not_blamed_on_a_limit() -> None:
    assert "too little free memory" in str(limit_remedy(NO_HEAP, Limits(open_files=4096)))


def test_a_start_that_failed_for_an_unknown_reason_quotes_the_errors_and_not_the_usage_text() -> None:
    usage = "\n".join(f"  --option-{n}  does something" for n in range(50))
    told = start_failure(f"Error: Unrecognized option --foo\n{usage}", 1, Limits())
    assert told.endswith("It said:\n  Error: Unrecognized option --foo")


def test_a_wrong_heap_size_names_the_setting() -> None:
    assert "Correct spark.driver.memory" in start_failure("Too small maximum heap", 1, Limits())


def test_a_driver_with_too_little_memory_says_how_much_it_needs() -> None:
    told = context_failure("… System memory 67108864 must be at least 471859200.", "64m")
    assert "spark.driver.memory is 64m, and Spark needs at least 450 MiB" in told


def test_the_error_of_a_machine_without_a_free_port_names_the_cause() -> None:
    told = context_failure(
        "java.net.BindException: bind(..) failed with error(-98): Address already in use: Service "
        "'org.apache.spark.network.netty.NettyBlockTransferService' failed after 16 retries (on a random free port)! "
        "Consider explicitly setting the appropriate binding address",
        "1g",
    )
    assert "this machine has no free TCP port" in told
    assert "ip_local_port_range" in told
    assert "binding address" not in told


def test_the_error_of_a_killed_jvm_mentions_memory_and_the_checkpoint() -> None:
    told = str(jvm_lost(-9, "", "1g"))
    assert "was killed (SIGKILL)" in told
    assert "dmesg" in told
    assert "resumes from its checkpoint" in told


@pytest.mark.parametrize(
    ("exit_code", "log"), [(3, ""), (52, ""), (134, "java.lang.OutOfMemoryError: Java heap space")]
)
def test_the_error_of_a_jvm_out_of_heap_names_the_setting_and_its_value(exit_code: int, log: str) -> None:
    assert "spark.driver.memory is 480m" in str(jvm_lost(exit_code, log, "480m"))


@pytest.mark.parametrize("exit_code", [-15, 143])
def test_the_error_of_a_terminated_jvm_names_the_signal(exit_code: int) -> None:
    assert "was ended by SIGTERM" in str(jvm_lost(exit_code, "", "1g"))


def test_a_jvm_that_stopped_answering_is_lost_too() -> None:
    assert "does not answer" in str(jvm_lost(None, "", "1g"))


def test_a_lost_jvm_and_a_wrong_python_are_not_retried_but_a_dead_worker_is() -> None:
    assert not SparkLostError.retryable
    assert not WorkerSetupError.retryable
    assert SparkJobError.retryable


def test_the_error_of_a_dead_worker_names_its_steps_and_mentions_memory() -> None:
    told = failure_of("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)")
    assert "a Python worker died 4 times while it ran epoch 5, level 1 of 2: Read orders" in told
    assert "ran out of memory" in told


def test_a_crash_in_native_code_is_distinguished_from_a_killed_worker() -> None:
    told = failure_of(
        "Python worker exited unexpectedly (crashed): Fatal Python error: Segmentation fault\n\nCurrent thread"
    )
    assert "crashed 4 times (Segmentation fault) while it ran epoch 5, level 1 of 2: Read orders" in told
    assert "memory" not in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Error from python worker:\n ModuleNotFoundError: No module named 'penstock'",
            "No module named 'penstock'",
        ),
        (
            "Error while finding module specification for 'penstock.runner.daemon' (ModuleNotFoundError: No module "
            "named 'penstock')",
            "No module named 'penstock'",
        ),
        ('java.io.IOException: Cannot run program "python3.9": error=2', "'python3.9' cannot be started"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11",
            "3.10",
        ),
    ],
)
def test_the_error_of_workers_with_another_python_names_pyspark_python(text: str, said: str) -> None:
    error = job_failure(ABORTED + text, stage_name)
    assert isinstance(error, WorkerSetupError)
    assert said in str(error)
    assert "`penstock package` packs" in str(error)


def test_an_executor_lost_to_its_container_quotes_the_reason() -> None:
    told = failure_of(
        "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: OOM killed"
    )
    assert "an executor was lost 4 times" in told
    assert "OOM killed" in told
    assert "spark.executor.memory" in told


def test_any_other_failure_keeps_the_java_message_and_drops_the_stack() -> None:
    told = failure_of("java.io.IOException: No space left on device\n\tat org.apache.spark.Foo(Foo.scala:1)")
    assert "No space left on device" in told
    assert "Foo.scala" not in told


def test_a_session_that_spark_ended_is_distinguished_from_a_failed_job() -> None:
    assert session_ended("Job 0 cancelled because SparkContext was shut down")
    assert not session_ended("Job 0 cancelled part of cancelled job group")
