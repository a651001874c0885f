"""Partitions of a read: tokens that divide its rows, and the rows of one token.

A token stands for a run of neighbouring rows. It is valid only for the transaction and the read that it was made for.

Source: google/spanner/v1/spanner.proto, PartitionRead: "There are no ordering guarantees on rows returned among the
returned partition tokens, or even within each individual StreamingRead call issued with a partition_token". So a client
that relies on an order must fail here: the rows of a token begin in the middle, and tokens come in no order.

Chosen here, because the service does not say how it divides: about `max_partitions` runs of equal length, four without
it, and never fewer than `_FEWEST_ROWS` rows in one.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

from penstock_emulators.simulated_spanner.errors import invalid

Item = TypeVar("Item")

_PARTITIONS = 4
_FEWEST_ROWS = 100


def partition_tokens(request: Any, transaction: bytes, rows: int) -> list[bytes]:
    """Return the tokens of a PartitionRead of a table with `rows` rows."""
    wanted = request.partition_options.max_partitions or _PARTITIONS
    # Few rows are not worth several tokens.
    count = max(1, min(wanted, rows // _FEWEST_ROWS))
    bounds = [rows * number // count for number in range(count + 1)]
    tokens = [
        json.dumps([transaction.decode(), read_number(request), low, high]).encode()
        for low, high in pairwise(bounds)
    ]
    # Seeded, so that a replay has the same order, and shuffled, because the service promises none.
    random.Random(rows).shuffle(tokens)
    return tokens


def rows_of_token(request: Any, transaction: bytes, rows: Sequence[Item]) -> list[Item]:
    """Return the rows of the read that belong to its partition token.

    Raises:
        ServiceError: the token belongs to another transaction or another read.
    """
    try:
        owner, read, low, high = json.loads(request.partition_token)
    except ValueError:
        raise invalid("Invalid partition token.") from None
    if (owner, read) != (transaction.decode(), read_number(request)):
        raise invalid("Invalid partition token.")
    # From the middle on: a client that takes the first row for the lowest key fails here.
    middle = (low + high) // 2
    return [*rows[middle:high], *rows[low:middle]]


def read_number(request: Any) -> int:
    """Return a number that stands for the table, the columns and the keys of a read."""
    # The number does not depend on the token, so a token of another read is recognized.
    return zlib.crc32(
        repr((request.table, list(request.columns), request.key_set.SerializeToString())).encode()
    )
