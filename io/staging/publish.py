"""The last step of a staged sink, after the commit: it publishes the staged files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from penstock.io.staging.complete_marks import Mark, mark_complete
from penstock.io.staging.metrics import NAMESPACE
from penstock.io.staging.operations import clean_up, publish, sync_published
from penstock.io.staging.owner import claim
from penstock.io.staging.staged_file import PublishedFile, StagedFile
from penstock.io.staging.store import FileStore, store_of
from penstock.object_stores.store import in_parallel
from penstock.publish import CheckpointPosition

_MAX_EARLY = 100
"""Files of one epoch that the driver publishes: the tasks move many files sooner than one thread."""


@beam.typehints.with_output_types(PublishedFile)
class PublishFilesFn(beam.DoFn):
    """`StagedFile` to `PublishedFile`: the post-commit step.

    Order: none. What repeats: the outputs, with the same values; a repetition, however late, changes nothing in the
    store. It never overwrites a file, and a file that a consumer has taken away does not appear again. Watermark: held
    by the runner at each `StagedFile`. State: none.
    """

    def __init__(self, store: FileStore, sink: str, *, marks_complete: bool = False) -> None:
        self._store = store
        self._sink = sink
        self._marks_complete = marks_complete
        self._seen: list[StagedFile] = []
        self._waiting: list[tuple[StagedFile, Timestamp]] = []
        self._files = Metrics.counter(NAMESPACE, "published_files")

    def start_bundle(self) -> None:
        self._seen, self._waiting = [], []

    def process(
        self,
        publication: StagedFile,
        timestamp: Any = beam.DoFn.TimestampParam,
    ) -> Iterator[PublishedFile]:
        # Its own output, not this sink's: the file may have been staged before the output was changed.
        store = store_of(publication.output)
        self._seen.append(publication)
        if store.answers_late:
            self._waiting.append((publication, timestamp))
            return
        publish(store, publication)
        # Count the file in each try: exactly one try of the step is part of a committed epoch, whichever process has
        # moved the file.
        self._files.inc()
        yield publication.published()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        # A file costs several requests of tens of ms each; the files of an epoch do not depend on each other.
        in_parallel(lambda each: publish(store_of(each.output), each), [each for each, _ in self._waiting])
        self._files.inc(len(self._waiting))
        for publication, timestamp in self._waiting:
            yield GlobalWindows.windowed_value(publication.published(), timestamp)
        # The next commit drops these publications from the record, so the moves must survive a loss of power by then.
        for output in {publication.output for publication in self._seen}:
            sync_published(store_of(output), [each for each in self._seen if each.output == output])

    def publish_early(self, publications: Collection[StagedFile]) -> None:
        """Move the files now, where a move is a rename; see `penstock.publish.PublishesEarly`."""
        for publication in islice(publications, _MAX_EARLY):
            store = store_of(publication.output)
            # A store that answers late copies the file in several requests, which would all be sent twice.
            if not store.answers_late:
                publish(store, publication)

    def claim_output(self, job: str, position: CheckpointPosition) -> None:
        """Leave the mark of this checkpoint in the output; see `penstock.publish.ClaimsOutput`."""
        claim(self._store, job, self._sink, position)

    def mark_complete(self, job: str, record: int, until_us: int) -> None:
        """Say in the output until when it is complete, if that is wanted; see `penstock.publish.MarksComplete`."""
        if self._marks_complete:
            mark_complete(self._store, Mark.of(job, self._sink, record, until_us))

    def clean_up(self, job: str, generation: int, epoch: int, publications: Collection[Any]) -> None:
        """Delete what failed epochs of this sink have staged; see `penstock.publish.CleansUp`."""
        # Keep the files of other outputs too: two URLs may name one place, and no name of a staged file is used twice.
        keep = {each.staged for each in publications}
        clean_up(self._store, job, self._sink, (generation, epoch), keep)
