"""Applies requests of people to the parked tables of a record. Pure."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from penstock.parked import TableAction, TableRequest
from penstock.runner.protocol.record import EpochState, ParkedPublications

logger = logging.getLogger(__name__)


def after_requests(state: EpochState, requests: Collection[TableRequest]) -> EpochState:
    """Return the state in which tables are resuming or refilling or, if they are skipped, not parked any more.

    Requests about other parkings change nothing.
    """
    if not requests:
        return state
    parked = []
    for each in state.parked:
        actions = {request.action for request in requests if _is_about(request, each)}
        if TableAction.SKIP in actions:
            logger.warning(
                "the parked changes of %s are dropped, as asked: %d changes since its target refused it (%s)",
                each.table.name,
                each.table.changes,
                each.table.reason,
            )
        elif TableAction.REFILL in actions:
            parked.append(replace(each, table=replace(each.table, refilling=True)))
        elif TableAction.RESUME in actions:
            parked.append(replace(each, table=replace(each.table, resuming=True)))
        else:
            parked.append(each)
    return replace(state, parked=tuple(parked))


def is_resuming(state: EpochState) -> bool:
    """Whether changes of a parked table are being published: one part of them in each epoch."""
    return any(each.table.resuming for each in state.parked)


def _is_about(request: TableRequest, parked: ParkedPublications) -> bool:
    return request.step == parked.transform and request.is_about(parked.table)
