"""Tells which operations can end a chain, and what their function is. Uses Beam's worker internals (2.77)."""

from __future__ import annotations

from typing import Any

from apache_beam.runners.worker import operations

from penstock.runner.harness.chain import ChainEnd
from penstock.runner.harness.chain_code import Kind
from penstock.runner.harness.operations import SinkOperation


def chain_end(op: Any) -> ChainEnd | None:
    """Return how an operation takes elements from the chain before it; None if Beam's receiver calls it.

    A sink must have one edge. A combiner must be in the default windowing: its table has keys without windows then.
    """
    if isinstance(op, SinkOperation) and len(op.edges) == 1:
        return ChainEnd(Kind.WRITE, op, lambda: op.writers[0].put)
    # Not subclasses: they may override `process`.
    if type(op) is operations.PGBKCVOperation and op.is_default_windowing:
        return ChainEnd(Kind.COMBINE, op, lambda: op.add_key_value)
    return None
