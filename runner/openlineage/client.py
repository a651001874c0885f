"""Opens OpenLineage's client, which has its own configuration, and reports a run with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.compat import UTC
from penstock.errors import UsageError
from penstock.extras import extra_packages
from penstock.runner.openlineage.pipeline_datasets import Datasets, PipelineDatasets
from penstock.runner.openlineage.run_reporter import Kind, RunReporter
from penstock.runner.result import Progress

if TYPE_CHECKING:
    from penstock.runner.openlineage.events import RunIdentity


def open_client() -> Any:
    """Return the client, configured by its environment variables and its `openlineage.yml`.

    Raises:
        MissingExtraError: the extra `openlineage` is missing.
        UsageError: the configuration names no place for the events, or is wrong.
    """
    with extra_packages("openlineage"):
        from openlineage.client import OpenLineageClient
    try:
        client = OpenLineageClient()
        configured = (client.config.transport or {}).get("type")
    # The library raises different exceptions for wrong configurations, and their texts may repeat a key.
    except Exception as error:
        raise UsageError(
            f"--openlineage: the configuration of OpenLineage's client is wrong ({type(error).__name__}). Correct "
            "OPENLINEAGE_URL, the other variables OPENLINEAGE_… or openlineage.yml"
        ) from error
    # Without a configuration the client writes events to its log.
    if client.transport.kind == "console" and configured != "console":
        raise UsageError(
            "--openlineage does not know where to send events: set OPENLINEAGE_URL, or give a transport in "
            "openlineage.yml"
        )
    return client


def identity_of(
    job: str, run_id: str, spark_version: str, *, streaming: bool, environment: Mapping[str, str] = os.environ
) -> RunIdentity:
    """Return the identity of a run. The namespace of the job and its parent run come from the environment.

    Raises:
        UsageError: the environment names a parent run in another form than ``namespace/job/run id``.
    """
    from penstock.runner.openlineage.events import RunIdentity, parent_facet

    parent, root = (environment.get(f"OPENLINEAGE_{each}", "") for each in ("PARENT_ID", "ROOT_PARENT_ID"))
    parent_facet(parent, root)  # only for its error
    namespace = environment.get("OPENLINEAGE_NAMESPACE") or "default"
    return RunIdentity(namespace, job, run_id, streaming, spark_version, parent, root)


def new_run_id() -> str:
    """Return an id for a run."""
    from openlineage.client.uuid import generate_new_uuid

    return str(generate_new_uuid())


def reporter_of(
    client: Any,
    run: RunIdentity,
    pipeline: PipelineDatasets,
    progress: Callable[[], Progress],
    *,
    seconds: float,
) -> RunReporter:
    """Return what reports a run with a client; the tables of the sources are asked for in its thread."""
    from penstock.runner.openlineage.events import Commit, run_event

    known = Datasets(complete=False)

    def send(kind: Kind, at: float, error: str) -> None:
        nonlocal known
        # At the end no service is asked: the pipeline may have failed because of it.
        if not known.complete and kind in ("START", "RUNNING"):
            known = pipeline.ask()
        last = progress()
        commit = Commit(last.epoch, last.watermark_us, last.complete_us) if last.epoch else None
        client.emit(run_event(run, kind, datetime.fromtimestamp(at, UTC), known, commit, error))

    return RunReporter(send, lambda: client.close(5.0), seconds=seconds)
