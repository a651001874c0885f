"""Repeats work while its target does not answer. Clock and pause are arguments."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from penstock.io.staging.delivery import TargetUnavailableError

logger = logging.getLogger(__name__)

_MAX_PAUSE, _LOG_SECONDS = 10.0, 60.0

_Result = TypeVar("_Result")


def repeat_while_unavailable(
    work: Callable[[], _Result],
    target: str,
    unavailable_seconds: float,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> _Result:
    """Return the result of `work`, repeated with longer and longer pauses while it raises `TargetUnavailableError`.

    Raises:
        TargetUnavailableError: the target did not answer for `unavailable_seconds`.
        other errors of `work`, as they are.
    """
    # Both clocks start here: the log line says how long the target has been silent.
    begun = logged = clock()

    def log(state: RetryCallState) -> None:
        nonlocal logged
        if clock() - logged >= _LOG_SECONDS:
            logged = clock()
            error = state.outcome and state.outcome.exception()
            logger.warning("%s has not answered for %.0f s: %s", target, logged - begun, error)

    retrying = Retrying(
        retry=retry_if_exception_type(TargetUnavailableError),
        # Random, so that the senders of an epoch do not all ask again at the same moment.
        wait=wait_random_exponential(multiplier=0.1, max=_MAX_PAUSE),
        # Counted from the first try, not per pause.
        stop=lambda state: clock() - begun >= unavailable_seconds,
        before_sleep=log,
        sleep=pause,
        reraise=True,
    )
    try:
        return retrying(work)
    except TargetUnavailableError as error:
        raise TargetUnavailableError(
            f"{target} did not answer for {clock() - begun:.0f} s (unavailable_seconds={unavailable_seconds:g}). "
            f"When it answers again, start the pipeline again: nothing is lost. The last answer: {error}"
        ) from error
