"""The datasets of a pipeline, from the transforms that tell theirs (`penstock.datasets`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor

from penstock.datasets import Dataset, ReadsTables, ReadTable, WritesDatasets
from penstock.failures import describe_failure

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Datasets:
    """The datasets that a run reads and writes. `outputs`: each with the name of the step that writes it.

    `complete`: every source has told its tables. Otherwise there are no outputs, because they follow from the tables.
    """

    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[tuple[str, Dataset], ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class _Writer:
    """A transform that writes, its name, and the transforms that read what it gets."""

    step: str
    transform: WritesDatasets
    readers: tuple[ReadsTables, ...]


@dataclass(slots=True)
class PipelineDatasets:
    """The transforms of a pipeline that tell their datasets."""

    _readers: list[ReadsTables] = field(default_factory=list)
    _writers: list[_Writer] = field(default_factory=list)

    @classmethod
    def of(cls, pipeline: beam.Pipeline) -> PipelineDatasets:
        """Find them in a pipeline. Nothing is asked."""
        visitor = _Visitor()
        pipeline.visit(visitor)
        return cls(visitor.readers, visitor.writers)

    def ask(self) -> Datasets:
        """Return the datasets as they are known now. It may ask services, so it may take long. It raises nothing."""
        tables: dict[int, list[ReadTable]] = {}
        for reader in self._readers:
            try:
                tables[id(reader)] = list(reader.tables_read())
            except Exception as error:
                # The pipeline asks the same service and reports its errors.
                logger.info("OpenLineage gets no tables of the source yet: %s", describe_failure(error))
        inputs = _each_once(each.dataset for found in tables.values() for each in found)
        if len(tables) < len(self._readers):
            return Datasets(inputs, complete=False)
        outputs = []
        for writer in self._writers:
            sources = [each.source for reader in writer.readers for each in tables[id(reader)]]
            found = writer.transform.datasets_written(sources)
            outputs += [(writer.step, dataset) for dataset in _each_once(found)]
        return Datasets(inputs, tuple(outputs))


class _Visitor(PipelineVisitor):
    def __init__(self) -> None:
        self.readers: list[ReadsTables] = []
        self.writers: list[_Writer] = []

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        # Sources and sinks are composite transforms, and Beam visits these by another method.
        self.visit_transform(transform_node)

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        transform = transform_node.transform
        if isinstance(transform, ReadsTables):
            self.readers.append(transform)
        # The outermost transform tells: it knows more than the steps in it.
        if isinstance(transform, WritesDatasets) and not _writes(transform_node.parent):
            readers = {id(each): each for each in _readers_before(transform_node)}
            self.writers.append(_Writer(transform_node.full_label, transform, tuple(readers.values())))


def _writes(node: AppliedPTransform | None) -> bool:
    """Return whether a transform, or one around it, tells what it writes."""
    while node is not None:
        if isinstance(node.transform, WritesDatasets):
            return True
        node = node.parent
    return False


def _readers_before(node: AppliedPTransform) -> Iterator[ReadsTables]:
    """Yield the transforms that read what reaches a transform, also more than once."""
    seen: set[AppliedPTransform] = set()
    waiting = _producers(node)
    while waiting:
        producer = waiting.pop()
        if producer in seen:
            continue
        seen.add(producer)
        waiting += _producers(producer)
        # The element comes from a step inside of the transform that users see.
        around: Any = producer
        while around is not None:
            if isinstance(around.transform, ReadsTables):
                yield around.transform
            around = around.parent


def _producers(node: AppliedPTransform) -> list[AppliedPTransform]:
    values = [*node.inputs, *(each.pvalue for each in node.side_inputs)]
    # The start of a pipeline has no producer.
    return [value.producer for value in values if value.producer is not None]


def _each_once(datasets: Iterable[Dataset]) -> tuple[Dataset, ...]:
    return tuple({(each.namespace, each.name): each for each in datasets}.values())
