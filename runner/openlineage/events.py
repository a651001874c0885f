"""Events of OpenLineage about one run. Pure. Needs the extra `openlineage`.

The schemas of the facets with the prefix `penstock` are in `docs/openlineage`. A name has the version of its schema, so
a changed schema gets a new file and a new name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import attr
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    JobFacet,
    OutputDatasetFacet,
    RunFacet,
    error_message_run,
    job_type_job,
    parent_run,
    processing_engine_run,
    schema_dataset,
)

from penstock import __version__
from penstock.datasets import Dataset
from penstock.errors import UsageError
from penstock.runner.openlineage.pipeline_datasets import Datasets
from penstock.runner.openlineage.run_reporter import Kind
from penstock.runner.protocol.complete import END_US
from penstock.timestamps import format_timestamp

# A URN, because no address on the web belongs to Penstock.
PRODUCER = f"urn:penstock:{__version__}"
SCHEMAS = "urn:penstock:openlineage:1-0-0"


@attr.define
class PenstockFrontierRunFacet(RunFacet):
    """The last commit of the run: the number of its record, and the lowest watermark of the pipeline."""

    record: int = attr.field()
    watermark: str | None = attr.field(default=None)

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMAS}:PenstockFrontierRunFacet.json#/$defs/PenstockFrontierRunFacet"


@attr.define
class PenstockFrontierOutputDatasetFacet(OutputDatasetFacet):
    """Until when an output is complete: it has every change before this time. `record`: the commit that says so."""

    record: int = attr.field()
    completeUntil: str | None = attr.field(default=None)  # noqa: N815 - OpenLineage's style

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMAS}:PenstockFrontierOutputDatasetFacet.json#/$defs/PenstockFrontierOutputDatasetFacet"


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The fields that are equal in all events of a run. `spark_version` names the engine.

    `parent` and `root` are runs that have started this one, as ``namespace/job/run id``; empty: none.
    """

    namespace: str
    job: str
    run_id: str
    streaming: bool
    spark_version: str
    parent: str = ""
    root: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """The last commit: the number of its record, times in µs since 1970, and `complete_us` by post-commit step."""

    record: int
    watermark_us: int | None
    complete_us: Mapping[str, int | None]

    def complete_until_us(self, writer: str) -> int | None:
        """Return until when the target of a sink is complete: the lowest time of the post-commit steps in it."""
        # With the slash, because the name of another sink may begin with this one's.
        times = [
            us for step, us in self.complete_us.items() if step == writer or step.startswith(f"{writer}/")
        ]
        known = [us for us in times if us is not None]
        # Without a time of one of its steps, nothing is known of the whole sink.
        return min(known) if known and len(known) == len(times) else None


def run_event(
    run: RunIdentity, kind: Kind, at: datetime, datasets: Datasets, commit: Commit | None, error: str = ""
) -> RunEvent:
    """Return one event. `error`: why a run has failed, without values of rows."""
    return RunEvent(
        eventTime=at.isoformat(),
        producer=PRODUCER,
        eventType=RunState[kind],
        run=Run(run.run_id, _run_facets(run, commit, error)),
        job=Job(run.namespace, run.job, _job_facets(run)),
        inputs=[_input(each) for each in datasets.inputs],
        outputs=[_output(writer, each, commit) for writer, each in datasets.outputs],
    )


def parent_facet(parent: str, root: str) -> parent_run.ParentRunFacet | None:
    """Return the facet of the run that has started this one; None without one.

    Raises:
        UsageError: a text has not the form ``namespace/job/run id``.
    """
    if not parent:
        return None
    namespace, job, run_id = _run_of("OPENLINEAGE_PARENT_ID", parent)
    root_namespace, root_job, root_run = _run_of("OPENLINEAGE_ROOT_PARENT_ID", root or parent)
    return parent_run.ParentRunFacet(
        parent_run.Run(run_id),
        parent_run.Job(namespace, job),
        parent_run.Root(parent_run.RootRun(root_run), parent_run.RootJob(root_namespace, root_job)),
        producer=PRODUCER,
    )


def _run_of(variable: str, text: str) -> tuple[str, str, str]:
    # From the right: a namespace may have slashes.
    parts = text.rsplit("/", 2)
    try:
        namespace, job, run_id = parts
        return namespace, job, str(UUID(run_id))
    except ValueError:
        raise UsageError(f"{variable} must be namespace/job/run id, with a UUID as the run id") from None


def _run_facets(run: RunIdentity, commit: Commit | None, error: str) -> dict[str, RunFacet]:
    facets: dict[str, RunFacet] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            run.spark_version, "spark", __version__, producer=PRODUCER
        )
    }
    if parent := parent_facet(run.parent, run.root):
        facets["parent"] = parent
    if commit is not None:
        watermark = _time(commit.watermark_us)
        facets["penstock_frontier"] = PenstockFrontierRunFacet(commit.record, watermark, producer=PRODUCER)
    if error:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(error, "PYTHON", producer=PRODUCER)
    return facets


def _job_facets(run: RunIdentity) -> dict[str, JobFacet]:
    kind = "STREAMING" if run.streaming else "BATCH"
    return {"jobType": job_type_job.JobTypeJobFacet(kind, "PENSTOCK", "JOB", producer=PRODUCER)}


def _input(dataset: Dataset) -> InputDataset:
    if not dataset.columns:
        return InputDataset(dataset.namespace, dataset.name)
    fields = [schema_dataset.SchemaDatasetFacetFields(name) for name in dataset.columns]
    schema = schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER)
    return InputDataset(dataset.namespace, dataset.name, facets={"schema": schema})


def _output(writer: str, dataset: Dataset, commit: Commit | None) -> OutputDataset:
    output = OutputDataset(dataset.namespace, dataset.name)
    if commit is not None:
        until = _time(commit.complete_until_us(writer))
        facet = PenstockFrontierOutputDatasetFacet(commit.record, until, producer=PRODUCER)
        output.outputFacets = {"penstock_frontier": facet}
    return output


def _time(us: int | None) -> str | None:
    """Return a time as text; None for Beam's lowest and highest watermarks, which are no times."""
    return format_timestamp(us * 1000) if us is not None and 0 < us < END_US else None
