"""Partition tokens divide a read exactly, and promise no order."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud.spanner_v1.types import spanner as spanner_types
from google.cloud.spanner_v1.types import transaction as transaction_types

from penstock_emulators.simulated_spanner.data_service import _rows
from penstock_emulators.simulated_spanner.errors import ServiceError
from penstock_emulators.simulated_spanner.key_set import KeyRange, KeySet
from penstock_emulators.simulated_spanner.partitioned_read import partition_tokens, rows_of_token
from penstock_emulators.simulated_spanner.rows import order_of
from penstock_emulators.simulated_spanner.transaction import Snapshot, read_timestamp
from tests.unit.emulators.simulated_spanner.conftest import SECOND, START, database, write

ReadRequest = spanner_types.ReadRequest.pb()
PartitionReadRequest = spanner_types.PartitionReadRequest.pb()
ROWS = list(range(1000))


def partitioned(count: int = 0, table: str = "T") -> tuple[list[bytes], Any]:
    request = PartitionReadRequest(table=table, columns=["Id"])
    request.partition_options.max_partitions = count
    return partition_tokens(request, b"tx", len(ROWS)), ReadRequest(table=table, columns=["Id"])


def rows_of(token: bytes, request: Any, transaction: bytes = b"tx") -> list[int]:
    request.partition_token = token
    return rows_of_token(request, transaction, ROWS)


@pytest.mark.parametrize("count", [0, 1, 3, 10, 5000])
def test_tokens_divide_the_rows_of_a_read(count: int) -> None:
    tokens, request = partitioned(count)
    assert len(tokens) <= max(count, 4)
    assert sorted(row for token in tokens for row in rows_of(token, request)) == ROWS


def test_rows_of_a_token_come_in_no_order() -> None:
    tokens, request = partitioned()
    assert all(rows_of(token, request) != sorted(rows_of(token, request)) for token in tokens)


def test_a_token_is_valid_for_its_transaction_and_its_read_only() -> None:
    tokens, request = partitioned()
    with pytest.raises(ServiceError, match="Invalid partition token"):
        rows_of(tokens[0], request, b"another")
    with pytest.raises(ServiceError, match="Invalid partition token"):
        rows_of(tokens[0], partitioned(table="U")[1])
    with pytest.raises(ServiceError, match="Invalid partition token"):
        rows_of(b"no token", request)


def test_a_range_with_an_open_start_has_all_later_rows() -> None:
    made = database()
    for key in range(10):
        made.commit([write("insert", Id=str(key), V=None)], START + key * SECOND)
    table = made.schema.table("T")
    after_three = KeyRange(order_of(table, ("3",)), (), start_closed=False, end_closed=True)
    found = _rows(table, KeySet(ranges=(after_three,)), Snapshot(made, made.last))
    assert [row["Id"] for row in found] == [str(key) for key in range(4, 10)]
    until_six = KeyRange(
        order_of(table, ("3",)), order_of(table, ("6",)), start_closed=True, end_closed=False
    )
    found = _rows(table, KeySet(ranges=(until_six,)), Snapshot(made, made.last))
    assert [row["Id"] for row in found] == ["3", "4", "5"]


def test_rows_older_than_the_version_retention_cannot_be_read() -> None:
    made = database()
    options = transaction_types.TransactionOptions.ReadOnly.pb()()
    options.read_timestamp.seconds = (START - 3601 * SECOND) // SECOND
    with pytest.raises(ServiceError, match="maximum timestamp staleness"):
        read_timestamp(made, options, START)
    made.apply_ddl(["ALTER DATABASE d SET OPTIONS (version_retention_period = '2h')"], START)
    assert read_timestamp(made, options, START) == START - 3601 * SECOND
