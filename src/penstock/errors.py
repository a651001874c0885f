"""The errors that Penstock raises, in one hierarchy.

    try:
        result.wait_until_finish()
    except ChangeStreamError as error:   # any source
        ...

| branch | whose fault | what helps |
|---|---|---|
| `UsageError` | the caller's: an argument, a configuration, a pipeline that cannot run | correct what it names |
| `ServiceError` | an external system's: a source, a sink, a file system | do what the message says |
| `InvariantError` | Penstock's own: a rule that its code guarantees does not hold | report a bug |

`UsageError` is also a ValueError and the other two are RuntimeErrors, so callers that know only Python's own classes
catch them too. A message names the given value, the expected value and the fix. It never contains values of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

__all__ = [
    "AnotherDriverError",
    "ChangeStreamError",
    "DecodeError",
    "InvariantError",
    "LineageError",
    "PenstockError",
    "PositionLostError",
    "ServiceError",
    "SetupError",
    "SeveralProblemsError",
    "UnavailableError",
    "UnwritableError",
    "UsageError",
]


class PenstockError(Exception):
    """Base class of all errors that Penstock raises on purpose.

    `retryable` says whether the same work may succeed if it is tried again. The runner does not repeat an epoch
    that failed with an error that is not.
    """

    retryable: ClassVar[bool] = True

    @property
    def redacted(self) -> str:
        """The message without text from other libraries or from users' code, which may contain values of rows."""
        return str(self)


class UsageError(PenstockError, ValueError):
    """The caller passed something that cannot work. Nothing was started."""

    retryable = False


class ServiceError(PenstockError, RuntimeError):
    """An external system refused a request or behaved in an unexpected way."""


class AnotherDriverError(PenstockError):
    """Another driver runs the pipeline. This one did not start, or stops; the other one continues the work."""

    retryable = False


class UnwritableError(ServiceError, ValueError):
    """A change that a target can never hold. The message names table and column, and shows no value.

    Each try fails in the same way, so the change must be left out, or become a dead letter.
    """

    retryable = False


class InvariantError(PenstockError, RuntimeError):
    """A rule that Penstock's own code guarantees does not hold. This is a bug of Penstock."""


class ChangeStreamError(ServiceError):
    """A source cannot continue until the user does what the message says. No change was skipped.

    `run`: statements that repair it, in their order. A message about several problems shows all statements as one
    block.
    """

    def __init__(self, what: str = "", *, run: Sequence[str] = ()) -> None:
        super().__init__(f"{what}. Run: {'; '.join(run)}" if run else what)
        self.what, self.run = what, tuple(run)


class SetupError(ChangeStreamError):
    """The change stream does not exist, is not supported, or the credentials may not read it."""

    retryable = False


class SeveralProblemsError(SetupError):
    """A pipeline cannot start for several reasons. `problems`: a text for each; `statements`: what repairs them.

    The text of the error has a line for each problem, and then the statements as one block to paste.
    """

    def __init__(self, problems: Sequence[str], statements: Sequence[str] = (), database: str = "") -> None:
        """`database`: where the statements are run."""
        super().__init__(_listed(problems, statements, database))
        self.args = (
            tuple(problems),
            tuple(statements),
            database,
        )  # as they are given: so pickle makes it again
        self.problems, self.statements, self.database = self.args

    def __str__(self) -> str:
        return self.what

    @classmethod
    def of(cls, errors: Sequence[BaseException], database: str = "") -> BaseException:
        """Return one error for several, each problem once; a single one is returned unchanged."""
        problems: dict[str, None] = {}
        statements: dict[str, None] = {}
        for error in errors:
            if isinstance(error, SeveralProblemsError):
                problems |= dict.fromkeys(error.problems)
                statements |= dict.fromkeys(error.statements)
                database = database or error.database
            elif database and isinstance(error, ChangeStreamError):
                problems[error.what] = None
                statements |= dict.fromkeys(error.run)
            else:
                problems[str(error) or type(error).__name__] = None
        if len(problems) == 1:
            return errors[0]
        return cls(tuple(problems), tuple(statements), database)


def _listed(problems: Sequence[str], statements: Sequence[str], database: str) -> str:
    # All of one source begin with its name.
    name = problems[0].partition(": ")[0] + ": "
    name = name if all(problem.startswith(name) for problem in problems) else ""
    lines = [
        f"{name}{len(problems)} problems",
        *(f"  - {problem.removeprefix(name)}" for problem in problems),
    ]
    if statements:
        lines += [
            f"Run in the database {database}, as a superuser:",
            "",
            *(f"  {each};" for each in statements),
        ]
    return "\n".join(lines)


class PositionLostError(ChangeStreamError):
    """The service no longer has the changes after the reader's position."""

    retryable = False


class UnavailableError(ChangeStreamError):
    """The service did not answer for `unavailable_seconds`."""


class DecodeError(ChangeStreamError):
    """The service sent a message that its documentation does not allow. No part of the record was emitted."""


class LineageError(ChangeStreamError):
    """The partitions of the stream contradict its documentation, or a claimed step does not fit the frontier."""
