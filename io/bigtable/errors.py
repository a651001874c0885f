"""The error that each status of the service means. Pure."""

from __future__ import annotations

from penstock.errors import ChangeStreamError, PositionLostError, SetupError
from penstock.io.change_streams.status import RETRYABLE, UnreachableError, first_line, status_of

CODES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
"""Names of google.rpc.Code, by number: a close carries a number."""


def classify_status(
    code: str, details: str, table: str, position: str, *, by_token: bool = True
) -> Exception:
    """Return the exception that a gRPC status means: `UnreachableError` to try again, or the error to raise.

    `code` is the status code's name; `table` and `position` are the reader's own, for the message.
    `by_token` says whether that position was a token or a start time. How long to retry is not decided here.
    """
    code = status_of(code, details)
    if code in RETRYABLE:
        return UnreachableError(f"{table}: {code}: {first_line(details)}")
    kind, advice = _advice(code, details.lower(), by_token)
    return kind(f"{table}, read at {position}: {advice} (Bigtable said {code}: {first_line(details)})")


def classify_close(code: int, message: str, table: str, position: str) -> Exception:
    """Return the exception for a close with a status but without tokens. It never means that the partition has ended.

    OUT_OF_RANGE says that the partitioning changed; when the stream is opened again from the last token, the service
    names the present one. Any other status is treated like the status of a call.
    """
    name = CODES[code] if 0 <= code < len(CODES) else f"code {code}"
    if name in ("OUT_OF_RANGE", "OK"):
        return UnreachableError(f"{table}: closed with {name} and without a token")
    return classify_status(name, message, table, position)


def _advice(code: str, details: str, by_token: bool) -> tuple[type[ChangeStreamError], str]:
    for texts, answer in _KNOWN.get(code, ()):
        if not texts or any(text in details for text in texts):
            return answer[by_token] if isinstance(answer, dict) else answer
    return ChangeStreamError, "the stream was refused"


_Answer = tuple[type[ChangeStreamError], str]

_LOST = (
    "A pipeline that fell behind has lost changes: take a new snapshot of the table, start from then with a new "
    "checkpoint folder, and raise the change stream's retention period (at most 7 days)"
)
_TOO_OLD: dict[bool, _Answer] = {
    True: (
        PositionLostError,
        f"the position lies past the change stream's retention period. {_LOST}",
    ),
    False: (
        PositionLostError,
        "this time lies before the change stream was enabled or past its retention period, so changes after it "
        f"cannot be read any more. A new pipeline must pass a later start. {_LOST}",
    ),
}
_FUTURE: _Answer = (
    SetupError,
    "this time lies in the future. Pass an earlier start, or none for now; if you did, check the clock of the "
    "machine that built the pipeline",
)
_PROFILE: _Answer = (
    SetupError,
    "a change stream can be read only through an app profile with single-cluster routing. Create one (gcloud "
    "bigtable app-profiles create … --route-to=CLUSTER) and pass its name as app_profile",
)
_DISABLED: _Answer = (
    SetupError,
    "the table has no change stream (any more). Enable it with `gcloud bigtable instances tables update TABLE "
    "--change-stream-retention-period=7d`. Changes from before are lost: start with a new checkpoint folder",
)

# The service has one status for several causes, and its text tells them apart. The first entry that fits decides, so
# an entry without texts is the last of its status.
_KNOWN: dict[str, tuple[tuple[tuple[str, ...], _Answer | dict[bool, _Answer]], ...]] = {
    "OUT_OF_RANGE": (((), _TOO_OLD),),
    "FAILED_PRECONDITION": (
        (("profile", "routing", "cluster"), _PROFILE),
        (("retention", "too old", "expired"), _TOO_OLD),
        (("future",), _FUTURE),
        ((), _DISABLED),
    ),
    "INVALID_ARGUMENT": (
        (("profile", "routing", "cluster"), _PROFILE),
        (("future",), _FUTURE),
        (("retention", "too old", "before the change stream", "expired"), _TOO_OLD),
        (("not enabled", "disabled", "no change stream"), _DISABLED),
        (
            (),
            {
                True: (
                    PositionLostError,
                    "the service does not accept the position that the checkpoint holds. Most likely the table was "
                    "dropped and created again, or its change stream was disabled and enabled. Start with a new "
                    "checkpoint folder; if neither happened, report it, please",
                ),
                False: (
                    SetupError,
                    "the service does not accept the request. A start must lie within the retention period, after "
                    "the change stream was enabled, and not in the future; an end after it",
                ),
            },
        ),
    ),
    "NOT_FOUND": (
        (
            ("profile",),
            (SetupError, "the app profile does not exist. Check app_profile; without one it is 'default'"),
        ),
        (
            (),
            (
                SetupError,
                "the project, instance or table does not exist. Check the three names; an emulator forgets "
                "everything when it ends",
            ),
        ),
    ),
    "PERMISSION_DENIED": (
        (
            (),
            (
                SetupError,
                "the credentials may not read it. Grant bigtable.tables.readRows and "
                "bigtable.tables.readChangeStream (roles/bigtable.user) on the table or instance",
            ),
        ),
    ),
    "UNAUTHENTICATED": (
        (
            (),
            (
                SetupError,
                "no valid credentials. Run `gcloud auth application-default login`, set "
                "GOOGLE_APPLICATION_CREDENTIALS, or pass credentials",
            ),
        ),
    ),
    "UNIMPLEMENTED": (
        (
            (),
            (
                SetupError,
                "this server has no change streams. Google's own emulator has none: use "
                "`penstock emulator bigtable`",
            ),
        ),
    ),
}
