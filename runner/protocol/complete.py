"""Until which time the targets of a pipeline are complete, as a record tells. Pure.

A target is complete until T if it has everything below T that the pipeline sends to it (dead letters excepted), and
will not get more of it. The watermark of the elements that have reached a post-commit step is not that time yet: the
Publications of a record are published by the next epoch. So the time is the watermark from which the last epoch started
if Publications wait, and the current one otherwise. It never falls along the history of a checkpoint, and moves while
the sources are idle, as their watermarks do.

A table that is parked keeps the time that its sink had when the target refused it, and so does the sink. The other
tables of the sink have its time without parked tables.
"""

from __future__ import annotations

from penstock.runner.protocol.record import EpochState, WatermarkKey, WatermarkKind

END_US = 253_370_764_800_000_000
"""The year 9999. Beam's highest timestamp is later, and no commit time of a source is."""


def post_commit_steps(state: EpochState) -> list[str]:
    """Return the names of the steps that publish after a commit, sorted. A step is known once elements can reach it."""
    reads = {key.step for key in state.watermarks if key.kind is WatermarkKind.OUTPUT}
    reads |= {residual.transform for residual in (*state.residuals, *state.ended)}
    return sorted(
        key.step for key in state.watermarks if key.kind is WatermarkKind.CARRIED and key.step not in reads
    )


def complete_until_us(state: EpochState) -> dict[str, int | None]:
    """Return for each post-commit step until when its target is complete, parked tables included.

    Otherwise as `others_complete_until_us`.
    """
    times = others_complete_until_us(state)
    for each in state.parked:
        until_us, known = times.get(each.transform), each.table.complete_us
        if until_us is not None:
            times[each.transform] = min(until_us, known) if known else None
    return times


def others_complete_until_us(state: EpochState) -> dict[str, int | None]:
    """Return for each post-commit step until when the tables of its target that are not parked are complete.

    Times are exclusive, in microseconds since 1970.

    None: not known yet, or all input was read. An end or a drain bounds what was read then, and the source may have
    later changes, so Beam's highest watermark is no time. A program that reads on after an end would put the time
    back.
    """
    waiting = {each.transform for each in state.publications}
    times: dict[str, int | None] = {}
    for step in post_commit_steps(state):
        watermarks = state.observed_watermarks if step in waiting else state.watermarks
        until_us = watermarks.get(WatermarkKey.carried(step), 0)
        # Beam's lowest timestamp is far below 1970.
        times[step] = until_us if 0 < until_us < END_US else None
    return times
