"""The errors of Spark itself, as opposed to errors of the pipeline that runs on it.

| error | meaning | is the epoch tried again? |
|---|---|---|
| `SparkStartError` | Spark cannot start with these settings | no epoch has begun |
| `SparkKilledError` | the JVM was killed while it started | no epoch has begun; another start may succeed |
| `SparkLostError` | the JVM has ended, and with it the session | no: every try would fail |
| `WorkerSetupError` | the workers' Python cannot run the pipeline | no: every try would fail |
| `SparkJobError` | a worker or an executor died, or the job failed for another reason of Spark's | yes |

No message quotes a row: exceptions of the user's code do not travel through Spark.
"""

from __future__ import annotations

from penstock.errors import ServiceError


class SparkError(ServiceError):
    """Spark failed; the message says what happened and what to do."""


class SparkStartError(SparkError):
    """Spark did not start. Nothing has been read or written."""

    retryable = False


class SparkKilledError(SparkStartError):
    """A signal ended Spark's JVM while it started."""

    retryable = True


class SparkLostError(SparkError):
    """Spark's JVM ended while the pipeline ran. Everything up to the last commit is safe."""

    retryable = False


class WorkerSetupError(SparkError):
    """The Python of the workers does not exist, has another version, or lacks a module."""

    retryable = False


class SparkJobError(SparkError):
    """A Spark job failed. The next try may succeed, for example when another worker has more memory."""
