"""A sensor of Apache Airflow 3 that waits until the targets of a job are complete.

    from penstock.airflow import CompleteUntilSensor

    CompleteUntilSensor(task_id="orders_complete", checkpoint="s3://data/checkpoints/orders") >> report()

It runs in the environment of Airflow, which needs neither Beam nor Spark for it. No extra brings Airflow, because
Airflow pins the versions of many packages: see docs/schedulers.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException

from penstock.errors import UsageError
from penstock.runner import RemoteJob

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["CompleteUntilSensor"]


class CompleteUntilSensor(BaseSensorOperator):
    """Succeeds when the targets of a job have every change with a commit time before `until`.

    A look reads the last record of the checkpoint. By default the sensor is in the mode ``reschedule``, so it takes a
    slot of a worker only while it looks. A job that is stopped or has failed is waited for too, because it may be
    started again; `timeout` ends the wait.

    Args:
        checkpoint: checkpoint folder of the job, a path or a URL that the workers of Airflow reach. May be a template.
        until: the time, exclusive: a datetime with a time zone, or a text or a template with such a time in ISO 8601.
            Default: the end of the data interval of the run.
        sinks: parts of names of sinks, as ``penstock status`` shows them. Default: all sinks. May be templates.
        mode, kwargs: arguments of every sensor, such as `task_id`, `poke_interval` and `timeout` (both in seconds).

    The task fails with:
        AirflowFailException: the job has ended. There is no retry, because its targets get no more changes.
        UsageError: `until` is no time with a time zone, or no sink has a given name.
        CheckpointError: there is no checkpoint, or it cannot be read.
    """

    template_fields: Sequence[str] = ("checkpoint", "until", "sinks")

    def __init__(
        self,
        *,
        checkpoint: str,
        until: datetime | str = "{{ data_interval_end }}",
        sinks: Sequence[str] = (),
        mode: str = "reschedule",
        **kwargs: Any,
    ) -> None:
        super().__init__(mode=mode, **kwargs)
        self.checkpoint, self.until, self.sinks = checkpoint, until, sinks

    def poke(self, context: Context) -> bool:
        """Look once, and return whether the targets are complete."""
        job = RemoteJob.open(self.checkpoint)
        if job.wait_until_complete(_time(self.until), sinks=self.sinks, seconds=0, on_look=self._log_times):
            return True
        if job.has_ended():
            raise AirflowFailException(
                f"the job of {job.folder} has ended, so its targets get no more changes. "
                "Wait for the checkpoint of the job that follows it"
            )
        return False

    def _log_times(self, complete: Mapping[str, datetime | None]) -> None:
        for sink, at in complete.items():
            self.log.info("%s is complete until %s", sink, at or "no known time")


def _time(until: datetime | str) -> datetime:
    if isinstance(until, datetime):
        return until
    try:
        # Python 3.10 does not read the Z.
        return datetime.fromisoformat(until.replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(f"until must be a time such as 2026-01-31T12:00:00Z, got {until!r}.") from None
