"""Reads the records of Debezium's transaction topic back. Pure."""

from __future__ import annotations

import msgspec

from penstock.transforms.formats.debezium_place import TransactionRecord

_decode = msgspec.json.Decoder(TransactionRecord).decode


def parse_transaction_record(value: bytes) -> TransactionRecord:
    """Return the record of a value of the transaction topic.

    Raises:
        ValueError: not such a record.
    """
    try:
        return _decode(value)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a transaction metadata record of Debezium: {error}") from None
