"""Turns a failure of Spark or its JVM into one sentence that gives the cause and says what to do. Pure.

Spark reports these failures as Java stack traces, as `JAVA_GATEWAY_EXITED` without a reason, or as a refused
connection. The texts that this module searches for were read in Spark 4.3.0 and Java 17. An unknown text is quoted.
"""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass

from penstock.runner.spark.errors import SparkError, SparkJobError, SparkLostError, WorkerSetupError

MIN_OPEN_FILES = 1024
"""Open files that Spark needs at least: its JVM opens about 300 jars, then sockets and shuffle files."""

EXIT_OUT_OF_MEMORY = (3, 52)
"""Exit codes of a JVM without heap: 3 by -XX:+ExitOnOutOfMemoryError, 52 by Spark's own handler."""

QUOTED_LINES = 8
"""Number of log lines that a message quotes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of this process, which its children inherit; None where there is none."""

    open_files: int | None = None
    address_space_bytes: int | None = None

    @classmethod
    def of_this_process(cls) -> Limits:
        return cls(_hard(resource.RLIMIT_NOFILE), _hard(resource.RLIMIT_AS))


def _hard(which: int) -> int | None:
    # The hard limit of open files counts, since a JVM raises its own soft limit to it. `ulimit` sets both.
    hard = resource.getrlimit(which)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def limit_remedy(text: str, limits: Limits) -> str | None:
    """Return what to do about the limit that a JVM ran into, or None if it was not a limit."""
    few_files = limits.open_files is not None and limits.open_files < MIN_OPEN_FILES
    if few_files or "Too many open files" in text:
        return (
            f"the limit of open files is {limits.open_files} and Spark needs at least {MIN_OPEN_FILES}: "
            "raise it, for example with: ulimit -n 65536"
        )
    if limits.address_space_bytes is not None and _NO_MEMORY.search(text):
        return (
            f"the memory of each process is limited to {limits.address_space_bytes >> 10} KiB and a JVM reserves "
            "several GiB of addresses: remove the limit with: ulimit -v unlimited"
        )
    if _NO_MEMORY.search(text):
        return "the machine has too little free memory for a JVM: free some, or pass a smaller spark.driver.memory"
    return None


_NO_MEMORY = re.compile(
    r"Could not reserve enough space|insufficient memory|Cannot allocate memory|unable to create native thread"
    r"|Could not allocate|failed to map|error='Not enough space'|Failed to reserve"
)


def start_failure(log: str, exit_code: int | None, limits: Limits) -> str:
    """Return why the JVM ended before it was ready; `log` is what it wrote to standard error."""
    if remedy := limit_remedy(log, limits):
        return f"Spark's JVM did not start: {remedy}"
    if exit_code is not None and exit_code < 0:
        return f"Spark's JVM was ended by {_signal(exit_code)} before it was ready: start the pipeline again"
    if match := re.search(
        r"((?:Invalid|Too small) (?:maximum|initial) heap.*|Initial heap size set to.*)", log
    ):
        return (
            f"Spark's JVM did not start: {match[1].strip()}. Correct spark.driver.memory, for example to 2g"
        )
    return f"Spark's JVM ended with exit code {exit_code} before it was ready. It said:\n{_last_lines(log)}"


def context_failure(text: str, memory: str) -> str:
    """Return why Spark refused its configuration; `text` is the Java exception, `memory` spark.driver.memory."""
    if match := re.search(r"System memory \d+ must be at least (\d+)", text):
        needed = -(-int(match[1]) // (1 << 20))
        return (
            f"spark.driver.memory is {memory}, and Spark needs at least {needed} MiB: pass "
            "--spark_conf=spark.driver.memory=1g, or leave it out"
        )
    if "authenticate.secret" in text:
        return (
            "spark.authenticate is true and there is no secret: pass the secret of the Spark cluster with "
            "--spark_conf=spark.authenticate.secret=…, or --spark_conf=spark.authenticate=false"
        )
    # Spark's own text asks for another binding address, which helps only if an address or a port was configured.
    if "BindException" in text and "on a random free port" in text:
        return (
            "Spark did not start: this machine has no free TCP port. End programs that hold many connections, or widen "
            "the range of ports (sysctl net.ipv4.ip_local_port_range), then start the same command again"
        )
    return f"Spark did not start: {_java_message(text)}"


def jvm_lost(exit_code: int | None, log: str, memory: str) -> SparkLostError:
    """Return the error for a JVM that is gone; `exit_code` is negative for a signal, None if it is not known."""
    if exit_code is None:
        return SparkLostError(
            "Spark's JVM does not answer any more, so its session has ended: look for its end in the log of the "
            "driver or of the cluster, and start the pipeline again"
        )
    again = "Then start the pipeline again; it resumes from its checkpoint if it has one"
    if exit_code in EXIT_OUT_OF_MEMORY or "java.lang.OutOfMemoryError" in log:
        return SparkLostError(
            f"Spark's JVM ran out of heap memory (spark.driver.memory is {memory}): pass more, for example "
            f"--spark_conf=spark.driver.memory=4g, or make epochs smaller with --epoch_max_bytes. {again}"
        )
    if exit_code == -signal.SIGKILL:
        return SparkLostError(
            "Spark's JVM was killed (SIGKILL). If that was not on purpose, the machine ran out of memory and the "
            "kernel chose the JVM: see dmesg, and give the machine more memory or Spark fewer tasks at a time, for "
            f"example --spark_master='local[1,4]'. {again}"
        )
    if exit_code > 128:
        exit_code = 128 - exit_code  # so a JVM reports a signal that it has handled
    how = f"by {_signal(exit_code)}" if exit_code < 0 else f"(exit code {exit_code})"
    told = f" It said:\n{_last_lines(log)}\n" if log.strip() else " "
    return SparkLostError(f"Spark's JVM was ended {how} while the pipeline ran.{told}{again}")


def session_ended(text: str) -> bool:
    """Whether a Java exception says that Spark has ended the session, as it does when the JVM gets a SIGTERM."""
    return "SparkContext was shut down" in text or "stopped SparkContext" in text


def job_failure(text: str, stage_name: Callable[[int], str | None]) -> SparkError:
    """Return the error for a failed job; `text` is the Java exception, `stage_name` says what a stage ran."""
    # From the most specific text to the least: the text of a crash also says that a worker died.
    if error := _setup_failure(text):
        return error
    stage = re.search(r"Task \d+ in stage (\d+)\.\d+ failed (\d+) times", text)
    where = (stage and stage_name(int(stage[1]))) or "a task"
    times = f"{stage[2]} times" if stage and int(stage[2]) > 1 else "once"
    if "Fatal Python error" in text:
        fault = re.search(r"Fatal Python error: (.*)", text)
        return SparkJobError(
            f"a Python worker crashed {times} ({fault[1].strip() if fault else ''}) while it ran {where}: native "
            "code of a library in these steps is at fault"
        )
    if _WORKER_DIED.search(text):
        return SparkJobError(
            f"a Python worker died {times} while it ran {where}. It left no Python error, so most likely the "
            "machine ran out of memory and the kernel killed it (see dmesg): give the machine more memory, Spark "
            "fewer tasks at a time, for example --spark_master='local[1,4]', or make epochs smaller with "
            "--epoch_max_bytes"
        )
    if lost := re.search(r"ExecutorLostFailure \(executor \S+ exited.*?\) ?Reason: (.*)", text):
        return SparkJobError(
            f"an executor was lost {times} while it ran {where}: {lost[1].strip()[:300]} If this was memory, raise "
            "spark.executor.memory or spark.executor.memoryOverhead"
        )
    return SparkJobError(f"Spark failed while it ran {where}: {_java_message(text)}")


SHIP_PACKAGES = (
    "driver and executors need the same Python version and the same packages; `penstock package` packs this "
    "environment and prints the spark-submit command that ships it (docs/spark-submit.md), or set PYSPARK_PYTHON to a "
    "Python that every executor has"
)
"""What to do about workers that cannot run a pipeline."""

_WORKER_DIED = re.compile(r"Python worker exited unexpectedly|Python worker failed to connect back")


def _setup_failure(text: str) -> WorkerSetupError | None:
    fix = SHIP_PACKAGES
    if match := re.search(r'Cannot run program "([^"]*)"', text):
        return WorkerSetupError(f"the workers' Python {match[1]!r} cannot be started: {fix}")
    if "PYTHON_VERSION_MISMATCH" in text:
        versions = re.search(
            r"different version[^:]*: ([\d.]+), [^:]*: ([\d.]+)|: ([\d.]+) .*?: ([\d.]+)", text
        )
        told = f" ({', '.join(v for v in versions.groups() if v)})" if versions else ""
        return WorkerSetupError(f"workers and driver run different Python versions{told}: {fix}")
    if match := re.search(r"(?:ModuleNotFoundError|ImportError): (No module named '?[\w.]+'?)", text):
        return WorkerSetupError(f"the workers' Python says {match[1]!r}: {fix}")
    return None


def _signal(exit_code: int) -> str:
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def _java_message(text: str) -> str:
    """Return the message of a Java exception without its stack trace."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    told = [
        line.removeprefix(": ").strip() for line in lines if not line.startswith("An error occurred while")
    ]
    return " ".join(told[:3])[:600] or "no message"


def _last_lines(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    told = [
        line for line in lines if re.match(r"\s*(Error|Exception in|Caused by|Unrecognized|Invalid)", line)
    ]
    return "\n".join(f"  {line}" for line in (told or lines)[-QUOTED_LINES:]) or "  (nothing)"
