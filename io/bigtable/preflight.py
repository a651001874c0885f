"""The checks before a read: the routing of the app profile, and whether the service still has the start.

Only the admin API knows both, and a reader may lack the right to call it. Then the first request of the read reports
the error, before a record is emitted.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import PositionLostError, SetupError
from penstock.io.bigtable.source import ChangeStream
from penstock.timestamps import format_timestamp

Routing = str
"""Name of the routing policy in an AppProfile, such as single_cluster_routing; empty when unknown."""


def check_source(stream: ChangeStream, app_profile: str, routing: Callable[[], Routing]) -> None:
    """Check that the stream can be read through the app profile.

    Raises:
        SetupError: the app profile spreads requests over clusters.
    """
    policy = routing()
    if policy not in ("", "single_cluster_routing"):
        raise SetupError(
            f"the app profile {app_profile!r} of {stream.instance_path} has {policy}; a change stream can be read "
            "only with single-cluster routing. Create a profile for it (gcloud bigtable app-profiles create … "
            "--route-to=CLUSTER) and pass its name as app_profile"
        )


def check_retention(stream: ChangeStream, retention: Callable[[], int], now: int) -> None:
    """Check at the first start of a pipeline that the service still has the changes since the stream's start.

    `retention` returns nanoseconds, 0 if the service does not say; `now` is in nanoseconds too.

    Raises:
        PositionLostError: the start is older than the retention period.
    """
    kept = retention()
    if kept and stream.start < now - kept:
        raise PositionLostError(
            f"start {format_timestamp(stream.start)} is older than the retention period of the {stream}, "
            f"{kept / 3.6e12:g} hours; the earliest readable time is {format_timestamp(now - kept)}. Pass a later "
            "start, and take a snapshot of the table if you need older changes"
        )
