"""The state of a pipeline whose source reads again from an earlier time. Pure."""

from __future__ import annotations

from penstock.errors import UsageError
from penstock.runner.protocol.complete import complete_until_us
from penstock.runner.protocol.record import EpochState, Residual
from penstock.timestamps import format_timestamp


def check_rewindable(state: EpochState, to_us: int) -> None:
    """Check that everything that a state holds, besides positions, belongs to changes from `to_us` on.

    Raises:
        UsageError: it does not, or the state has ended, and what to do.
    """
    if state.done or state.draining:
        raise UsageError(
            "the job has ended or was drained, so nothing says until when its target is complete. Start a new job with "
            "another checkpoint folder"
        )
    if state.parked:
        names = ", ".join(each.table.name for each in state.parked)
        raise UsageError(f"tables are parked: {names}. Resume or skip them first (penstock tables)")
    times = complete_until_us(state)
    behind = [us for us in times.values() if us is None or us < to_us]
    if behind or not times:
        known = None if None in behind else min(filter(None, behind), default=None)
        until = "it is not known until when" if known is None else f"they are until {time_text(known)}"
        raise UsageError(
            f"the targets of the job are not complete until {time_text(to_us)}: {until}. Choose a time that is not "
            "later"
        )


def rewound_state(state: EpochState, residual: Residual, to_us: int) -> EpochState:
    """Return a state that reads again from `to_us` on with `residual`.

    State, timers and publications are dropped: the source sends again what they came from.
    """
    return EpochState(
        residuals=(residual,),
        # None may be above the watermark of a producer. The next epochs raise them again.
        watermarks={key: min(us, to_us) for key, us in state.watermarks.items()},
        fired_impulses=state.fired_impulses,
        schemas=state.schemas,
        metrics=state.metrics,
    )


def time_text(time_us: int) -> str:
    """Return a time in microseconds since 1970 as RFC 3339."""
    return format_timestamp(time_us * 1000)
