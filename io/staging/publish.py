"""The last step of a staged sink, after the commit: staged files to published ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from penstock.io.staging.metrics import NAMESPACE
from penstock.io.staging.operations import clean_up, publish, sync_published
from penstock.io.staging.publication import Publication, PublishedFile
from penstock.io.staging.store import FileStore, store_of


@beam.typehints.with_output_types(PublishedFile)
class PublishFilesFn(beam.DoFn):
    """`Publication` to `PublishedFile`: the post-commit step.

    Order: none. What repeats: the outputs, with the same values; a repetition, however late, changes nothing in the
    store. It never overwrites a file, and a file that a consumer has taken away does not appear again. Watermark: held
    by the runner at each `Publication`. State: none.
    """

    def __init__(self, store: FileStore, sink: str) -> None:
        self._store = store
        self._sink = sink
        self._seen: list[Publication] = []
        self._files = Metrics.counter(NAMESPACE, "published_files")

    def start_bundle(self) -> None:
        self._seen = []

    def process(self, publication: Publication) -> Iterator[PublishedFile]:
        # Its own output, not this sink's: the file may have been staged before the output was changed.
        self._files.inc(publish(store_of(publication.output), publication))
        self._seen.append(publication)
        yield publication.published()

    def finish_bundle(self) -> None:
        # The next commit drops these publications from the record, so the moves must survive a loss of power by then.
        for output in {publication.output for publication in self._seen}:
            sync_published(store_of(output), [each for each in self._seen if each.output == output])

    def clean_up(self, job: str, generation: int, epoch: int, publications: Collection[Any]) -> None:
        """Delete what failed epochs of this sink have staged; see `penstock.publish.CleansUp`."""
        keep = {each.staged for each in publications if each.output == self._store.output}
        clean_up(self._store, job, self._sink, (generation, epoch), keep)
