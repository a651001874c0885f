"""Pub/Sub as a target of change events.

    events | WriteToPubSub(project="my-project", topic="orders", format=DebeziumFormat("shop"))

Names are loaded when they are first used, so that `messages` needs neither Beam nor the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.io.pubsub.complete import CompleteTimes
    from penstock.io.pubsub.errors import PubSubTargetError
    from penstock.io.pubsub.write import WriteToPubSub

__all__ = ["CompleteTimes", "PubSubTargetError", "WriteToPubSub"]

_HOMES = {"CompleteTimes": "complete", "PubSubTargetError": "errors", "WriteToPubSub": "write"}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
