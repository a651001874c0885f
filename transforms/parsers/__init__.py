"""Parsers for consumers: from the records of a format back to `ChangeEvent`s. No pipeline of Penstock uses them.

    from penstock.transforms.parsers import DebeziumParser
    events = DebeziumParser(schema)(record.key, record.value, record.headers)

The parser of YDB's records is also the decoder of YDB's source: `penstock.transforms.YdbParser`.
"""

from penstock.transforms.parsers.debezium import DebeziumParser
from penstock.transforms.parsers.debezium_transaction import parse_transaction_record
from penstock.transforms.parsers.envelope import EventParser

__all__ = ["DebeziumParser", "EventParser", "parse_transaction_record"]
