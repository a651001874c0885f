"""An exception of a stage, in a form that travels to the driver."""

from __future__ import annotations

import logging
import pickle
import traceback

from penstock.runner.tasks.epoch import Failure

logger = logging.getLogger(__name__)


def failure_of(error: Exception, where: str) -> Failure:
    """Return the failure that the driver raises again; `where` says what the task did."""
    summary = "".join(traceback.format_exception_only(error)).strip()
    trace = "".join(traceback.format_exception(error))
    return Failure(summary, trace, where, _pickled(error))


def _pickled(error: Exception) -> bytes | None:
    """Return the pickled exception; None if it does not pickle, or cannot be loaded again: then its text is sent.

    An exception whose constructor takes other arguments than its `args` fails only in `loads`.
    """
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception as unpicklable:
        logger.debug("the exception does not pickle (%s); its text goes instead", type(unpicklable).__name__)
        return None
    return pickled
