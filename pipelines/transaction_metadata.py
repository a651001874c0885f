"""The choice `transaction_metadata`: its checks, and the step that adds places, BEGIN and END to the events."""

from __future__ import annotations

from typing import Any

import apache_beam as beam

from penstock.batches import SingleElements, is_batched
from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.pipelines.event_options import EventOptions
from penstock.transforms import AddTransactionMetadata, AssembleTransactions
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.formatted import Format


def metadata_format(options: EventOptions, format: Format) -> DebeziumFormat | None:
    """Return the format if transaction metadata is wanted, otherwise None.

    Raises:
        UsageError: it is wanted, and another choice excludes it.
    """
    if not options.transaction_metadata:
        return None
    if not isinstance(format, DebeziumFormat):
        raise UsageError("transaction_metadata is Debezium's: set format=debezium")
    if options.dead_letters is not None:
        raise UsageError(
            "transaction_metadata counts the records of whole transactions, so no record can be left out: remove "
            "dead_letters"
        )
    return format


def refuse_snapshots(options: EventOptions, source: Any) -> None:
    """Refuse snapshots together with transaction metadata: rows would come before changes that wait.

    Raises:
        UsageError: `source` reads snapshots, and transaction metadata is wanted.
    """
    if options.transaction_metadata and source.reads_snapshots:
        raise UsageError(
            "transaction_metadata delays changes until their transaction is whole, so rows of a snapshot would come "
            "before changes that they contain: set snapshot=never, and remove signal_table, signal_file and "
            "signal_folder"
        )


def refuse_schema_in_topic(topic: str | None) -> None:
    """Refuse a name of topics that needs a schema: BEGIN and END belong to none.

    Raises:
        UsageError: `topic` has ``{schema}``.
    """
    if topic is not None and "{schema}" in topic:
        raise UsageError(
            f"transaction_metadata: BEGIN and END belong to no schema, so topic={topic} gives no name for their "
            "topic. Remove {schema} from it"
        )


class WithTransactionMetadata(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Emits the events of whole transactions with their places, between BEGIN and END.

    Messages that were written outside of a transaction pass directly. Order, repeats, watermark and state are those
    of `AssembleTransactions`.
    """

    def __init__(self, format: DebeziumFormat) -> None:
        super().__init__()
        self._format = format

    def expand(self, events: beam.PCollection[ChangeEvent]) -> Any:
        """Apply the steps."""
        if is_batched(events):
            events |= SingleElements()
        alone, whole = events | "OfTransactions" >> beam.Partition(_is_in_transaction, 2)
        placed = whole | AssembleTransactions() | "Places" >> AddTransactionMetadata(self._format)
        return (placed, alone) | "AllEvents" >> beam.Flatten()


def _is_in_transaction(event: ChangeEvent, parts: int) -> int:
    return int(event.transaction is not None)
