"""Maps errors of pyiceberg to the outcome of a publication. Pure."""

from __future__ import annotations

from penstock.errors import ServiceError
from penstock.io.columnar.store_errors import advice_for, one_line
from penstock.io.staging.delivery import TargetUnavailableError

# Names of pyiceberg's exceptions; the module imports no client.
_REFUSED = {
    "UnauthorizedError": "the catalogue does not accept the credentials. Check token, credential or login",
    "OAuthError": "the catalogue does not accept the credentials. Check credential and scope",
    "AuthorizationExpiredError": "the login to the catalogue has expired. Renew it",
    "ForbiddenError": "the credentials may not do this. They need the right to create, read and write the table",
    "BadRequestError": "the catalogue refuses the request. Check warehouse and the other properties",
    "RESTError": "the catalogue refuses the request. Check uri and warehouse",
}
_BAD_LOGIN = "password authentication failed"


class IcebergTargetError(ServiceError):
    """The catalogue or the storage refuses the sink's requests. The message names the fix."""

    retryable = False


def classify_error(kind: str, text: str, target: str, *, may_answer_later: bool) -> ServiceError | None:
    """Return the exception that an error means; None if it is none of a catalogue or a storage.

    `kind` is the name of the exception's class. `may_answer_later`: the class means that the
    service does not answer.
    """
    # The second line of an error of a database has the statement.
    first = text.partition("\n")[0]
    advice = _REFUSED.get(kind) if kind in _REFUSED else advice_for(text) if may_answer_later else None
    if _BAD_LOGIN in text:
        advice = "the catalogue's database does not accept the login"
    if advice is not None:
        return IcebergTargetError(f"{target}: {advice} (pyiceberg said: {one_line(first)})")
    return TargetUnavailableError(f"{target}: {one_line(first)}") if may_answer_later else None


def not_configured(catalog: str, text: str) -> IcebergTargetError:
    """Return the error for a catalogue that pyiceberg cannot load."""
    return IcebergTargetError(
        f"the catalogue {catalog} is not configured: give its properties in .pyiceberg.yaml, in variables such as "
        f"PYICEBERG_CATALOG__{catalog.upper()}__URI, or in catalog_properties (pyiceberg said: {one_line(text)})"
    )
