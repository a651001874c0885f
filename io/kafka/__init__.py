"""Kafka as a target of change events.

    events | WriteToKafka("broker:9092", format=DebeziumFormat("shop"))

Names are loaded when they are first used, so that `records` needs neither Beam nor the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.io.kafka.complete import complete_until
    from penstock.io.kafka.errors import KafkaTargetError
    from penstock.io.kafka.write import WriteToKafka

__all__ = ["KafkaTargetError", "WriteToKafka", "complete_until"]

_HOMES = {"KafkaTargetError": "errors", "WriteToKafka": "write", "complete_until": "complete"}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
