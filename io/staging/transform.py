"""The steps of a staged sink that writes files, as one transform."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apache_beam as beam

from penstock.datasets import Dataset
from penstock.event.model import Source
from penstock.io.staging.blocks import BucketRun, RecordRun
from penstock.io.staging.collect import CollectRecordsFn, WholeFiles, in_global_window
from penstock.io.staging.file_stager import FileStager
from penstock.io.staging.folder_datasets import folder_dataset
from penstock.io.staging.format import FileFormat
from penstock.io.staging.names import sink_name
from penstock.io.staging.publish import PublishFilesFn
from penstock.io.staging.roll import RollFilesFn
from penstock.io.staging.rolling import RollingPolicy
from penstock.io.staging.staged_file import PublishedFile
from penstock.io.staging.store import FileStore
from penstock.publish import ForgettingParDo, PublishAfterCommit


class WriteStagedFiles(beam.PTransform):
    """Write elements into files of any format: collect, roll, stage, commit, publish.

    A sink that stages in the same way but publishes in another way takes the first two steps, `CollectRecordsFn` and
    `RollFilesFn`, and passes its own DoFn to `PublishAfterCommit`.

    Order, repeats, watermark and state: see the steps.

    Args:
        store: where files are staged and published.
        encode: a function from an element to its record.
        bucket: a function from an element and its event time, in µs since 1970, to its bucket.
        places: see `CollectRecordsFn`.
        format: turns records into the content of a file.
        policy: when a file rolls.
        in_event_time_order: see `RollFilesFn`.
        marks_complete: whether the output says until when it is complete; see `penstock.io.staging.complete_until`.
        folders: returns the folders, below the output, for events of tables. If it is None, or no table is known, the
            dataset is the output.
    """

    def __init__(
        self,
        store: FileStore,
        *,
        encode: Callable[[Any], bytes],
        bucket: Callable[[Any, int], str],
        places: Callable[[RecordRun], Iterable[BucketRun]] | None = None,
        format: FileFormat,
        policy: RollingPolicy,
        in_event_time_order: bool = False,
        marks_complete: bool = False,
        folders: Callable[[Sequence[Source]], Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._encode = encode
        self._bucket = bucket
        self._places = places
        self._format = format
        self._policy = policy
        self._in_event_time_order = in_event_time_order
        self._marks_complete = marks_complete
        self._folders = folders

    def check(self) -> None:
        """Create the output if it is missing, and write a temporary file into it; see `penstock.preflight`.

        Raises:
            OutputError: the output cannot be created or written.
        """
        self._store.check_writable()

    def datasets_written(self, sources: Sequence[Source]) -> Sequence[Dataset]:
        """Return the folders for events of these tables; see `penstock.datasets`."""
        folders = self._folders(sources) if self._folders else ()
        return [folder_dataset(self._store.output, folder) for folder in folders or [""]]

    def expand(self, elements: beam.PCollection[Any]) -> beam.PCollection[PublishedFile]:
        self._store.check_location()
        # The name of a sink must be the same after a restart, and only its full name in the pipeline is. While a
        # transform is expanded, Beam (read in 2.77) has it on top of this stack and tells its name nowhere else.
        sink = sink_name(elements.pipeline.transforms_stack[-1].full_label)
        roll = RollFilesFn(
            self._store, sink, self._policy, self._format, in_event_time_order=self._in_event_time_order
        )
        # Files in the order of event times also have records of other readers, so no reader has a whole one.
        whole_files = (
            None
            if self._in_event_time_order
            else WholeFiles(FileStager(self._store, sink, self._format), self._policy.at_bytes)
        )
        collect = CollectRecordsFn(self._encode, self._bucket, places=self._places, whole_files=whole_files)
        publish = PublishFilesFn(self._store, sink, marks_complete=self._marks_complete)
        return (
            in_global_window(elements)
            | "Collect" >> beam.ParDo(collect)
            | "Roll" >> ForgettingParDo(roll)
            | "Publish" >> PublishAfterCommit(publish)
        )

    def display_data(self) -> dict[str, Any]:
        return {
            "output": self._store.output,
            "suffix": self._format.suffix,
            "roll_seconds": self._policy.after_us / 1e6,
            "roll_bytes": self._policy.at_bytes,
            "in_event_time_order": self._in_event_time_order,
        }
