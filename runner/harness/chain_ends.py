"""Tells which operations can end a chain, and what their function is. Uses Beam's worker internals (2.77)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.runners.worker import operations
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.chain import ChainEnd
from penstock.runner.harness.chain_code import Kind
from penstock.runner.harness.operations import SinkOperation
from penstock.runner.planning.urns import SINK_URN

END_URNS = frozenset([SINK_URN, common_urns.combine_components.COMBINE_PER_KEY_PRECOMBINE.urn])
"""The transforms whose operations can end a chain."""


def chain_end(op: Any) -> ChainEnd | None:
    """Return how an operation takes elements from the chain before it; None if Beam's receiver calls it.

    A sink must have one edge.
    """
    if isinstance(op, SinkOperation) and len(op.edges) == 1:
        return ChainEnd(Kind.WRITE, op, lambda: op.writers[0].put)
    # Not subclasses: they may override `process`.
    if type(op) is operations.PGBKCVOperation:
        if op.is_default_windowing:
            return ChainEnd(Kind.COMBINE, op, lambda: op.add_key_value)
        return ChainEnd(Kind.COMBINE_IN_WINDOWS, op, lambda: _combining_in_windows(op))
    return None


def _combining_in_windows(op: operations.PGBKCVOperation) -> Callable[[WindowedValue, Any], None]:
    """Return what `PGBKCVOperation.process` does in other windowings than the default one."""
    add, is_stamped = op.add_key_value, bool(op.timestamp_combiner)

    def combine(element: WindowedValue, pair: Any) -> None:
        key, value = pair
        at = element.timestamp if is_stamped else None
        for window in element.windows:
            add((window, key), value, at)

    return combine
