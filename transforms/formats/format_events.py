"""`FormatEvents`, `FormatShardRecords`, `FormatTransactions` and `AddTransactionMetadata` for pipelines."""

from __future__ import annotations

from typing import Any

from penstock.event import ChangeEvent
from penstock.transforms.assemble_transactions import AssembledTransaction
from penstock.transforms.element_transform import ElementTransform
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_transaction import format_transaction, placed_events
from penstock.transforms.formats.formatted import Format, FormattedRecord
from penstock.transforms.formats.ydb import YdbFormat
from penstock.transforms.virtual_timestamps import ShardRecord


class FormatEvents(ElementTransform):
    """Turns events into `FormattedRecord`s, in the order of their events.

        records = events | FormatEvents(DebeziumFormat("shop"))

    An event that the format cannot express raises a ValueError that names the reason and shows no value. With
    `with_exception_handling` such events go to a second output.
    """

    def __init__(self, format: Format) -> None:
        self._format = format
        super().__init__(format, FormattedRecord)

    def display_data(self) -> dict[str, Any]:
        # The class only: options of a format may hold the address of a schema registry with a password.
        return {"format": type(self._format).__name__}


class FormatTransactions(ElementTransform):
    """Turns `AssembledTransaction`s into `FormattedRecord`s with Debezium's transaction metadata.

        transactions = events | AssembleTransactions()
        records = transactions | FormatTransactions(DebeziumFormat("shop"))

    As Debezium's connectors with `provide.transaction.metadata`: each transaction begins with a record BEGIN in
    the topic ``<server>.transaction`` and finishes with a record END, which counts its events. Each record between
    them has a block `transaction` with its place. `formats.debezium_transaction` describes the form.

    Order, repeats, watermark and state are as in `ElementTransform`; the state of whole transactions is in
    `AssembleTransactions`. Raises ValueError as `FormatEvents` does.
    """

    def __init__(self, format: DebeziumFormat) -> None:
        super().__init__(_OfTransaction(format), FormattedRecord)

    def display_data(self) -> dict[str, Any]:
        return {"format": "DebeziumFormat"}


class _OfTransaction:
    def __init__(self, format: DebeziumFormat) -> None:
        self._format = format

    def __call__(self, transaction: AssembledTransaction) -> list[FormattedRecord]:
        return format_transaction(self._format, transaction.events)


class AddTransactionMetadata(ElementTransform):
    """Turns `AssembledTransaction`s into their events with places for Debezium's transaction metadata.

        format = DebeziumFormat("shop")
        events = events | AssembleTransactions() | AddTransactionMetadata(format)
        events | WriteToKafka("broker:9092", format=format)

    An event BEGIN comes before the events of a transaction, and an event END after them. `format` must be the one that
    formats the events: it says how many records each becomes, which the places and END count. Other formats cannot
    show BEGIN and END. The records are the same as of `FormatTransactions`. Order, repeats, watermark and state are as
    in `ElementTransform`; the state of whole transactions is in `AssembleTransactions`.
    """

    def __init__(self, format: DebeziumFormat) -> None:
        super().__init__(_Placed(format), ChangeEvent)

    def display_data(self) -> dict[str, Any]:
        return {"format": "DebeziumFormat"}


class _Placed:
    def __init__(self, format: DebeziumFormat) -> None:
        self._format = format

    def __call__(self, transaction: AssembledTransaction) -> list[ChangeEvent]:
        return placed_events(self._format, transaction.events)


class FormatShardRecords(ElementTransform):
    """Turns (shard, `ShardRecord`) into (shard, `FormattedRecord`): events, and barriers as `resolved` records.

        shards = events | ShardByKey(8) | Barriers(shards=8, per_table=True)
        records = shards | FormatShardRecords(YdbFormat("feed", virtual_timestamps=True))

    A barrier goes to the topic of its table, so use `per_table=True` if a sink writes each table to a topic.

    Order, repeats, watermark and state are as in `ElementTransform`. Raises ValueError as `FormatEvents` does.
    """

    def __init__(self, format: YdbFormat) -> None:
        super().__init__(_OfShard(format), tuple[int, FormattedRecord])

    def display_data(self) -> dict[str, Any]:
        return {"format": "YdbFormat"}


class _OfShard:
    def __init__(self, format: YdbFormat) -> None:
        self._format = format

    def __call__(self, pair: tuple[int, ShardRecord]) -> list[tuple[int, FormattedRecord]]:
        shard, record = pair
        if record.event is not None:
            return [(shard, each) for each in self._format(record.event)]
        return [(shard, self._format.barrier(record.table, record.timestamp.step * 1_000_000))]
