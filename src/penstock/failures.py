"""Describes an error to the user without showing values of rows."""

from __future__ import annotations

import traceback

from penstock.errors import PenstockError


def describe_failure(error: BaseException) -> str:
    """Return what failed in a running pipeline: the first cause, then in brackets what failed because of it.

    Only Penstock's own errors are quoted, since they never contain values of rows. Any other error may contain them. It
    is named by its type and the line that raised it.
    """
    chain = [error]
    while (
        (cause := chain[-1].__cause__) is not None and cause not in chain and not _explains(chain[-1], cause)
    ):
        chain.append(cause)
    causes = [_describe(each) for each in reversed(chain)]
    consequences = f" ({'; '.join(causes[1:])})" if len(causes) > 1 else ""
    hidden = "" if all(_is_ours(each) for each in chain) else ". Add --debug to see its message and traceback"
    return causes[0] + consequences + hidden


def _describe(error: BaseException) -> str:
    if isinstance(error, PenstockError):
        return error.redacted or type(error).__name__
    if _is_ours(error):
        return str(error) or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__ + (f" in {frames[-1].filename}:{frames[-1].lineno}" if frames else "")


def _explains(error: BaseException, cause: BaseException) -> bool:
    """Whether one of Penstock's errors says already what the system error behind it says."""
    if not (isinstance(error, OSError) and isinstance(cause, OSError)):
        return False
    return _is_ours(error) and error.errno == cause.errno


def _is_ours(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "penstock"
