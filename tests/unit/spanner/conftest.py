"""Builders of small records, frontiers and protobuf rows."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.io.spanner.record import ChildPartition, ChildPartitionsRecord, DataChangeRecord, Mods


def data(timestamp: int, transaction: str = "t", sequence: int = 0, **changes: Any) -> DataChangeRecord:
    fields: dict[str, Any] = {
        "commit_timestamp": timestamp,
        "record_sequence": f"{sequence:08d}",
        "server_transaction_id": transaction,
        "is_last_record_in_transaction_in_partition": True,
        "table_name": "T",
        "column_types": (),
        "mods": Mods(('{"K":"1"}', "{}", "{}")),
        "mod_type": "INSERT",
        "value_capture_type": "OLD_AND_NEW_VALUES",
        "number_of_records_in_transaction": 1,
        "number_of_partitions_in_transaction": 1,
        "transaction_tag": "",
        "is_system_transaction": False,
    }
    return DataChangeRecord(**{**fields, **changes})


def children(start: int, *tokens_and_parents: tuple[str, tuple[str, ...]]) -> ChildPartitionsRecord:
    return ChildPartitionsRecord(
        start,
        "00000000",
        tuple(ChildPartition(token, frozenset(parents)) for token, parents in tokens_and_parents),
    )


@pytest.fixture(name="data")
def data_fixture() -> Any:
    return data


@pytest.fixture(name="children")
def children_fixture() -> Any:
    return children
