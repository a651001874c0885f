"""Secrets of Azure Key Vault, through azure-keyvault-secrets and azure-identity.

Source: Key Vault REST API reference, "Get Secret".
"""

from __future__ import annotations

import re
from typing import Any

from azure.core import exceptions
from azure.identity import DefaultAzureCredential
from azure.keyvault.secrets import SecretClient

from penstock.errors import ServiceError, UsageError

_IDENTIFIER = re.compile(r"(https://[^/]+)/secrets/([^/]+)(?:/([^/]+))?/?")


def content(identifier: str) -> str:
    """Return the content of the secret with an identifier, which is a URL; the latest version if it names none.

    Raises:
        UsageError: the identifier has another form, or there is no such secret, no credentials or no permission.
        ServiceError: the service does not answer.
    """
    parts = _IDENTIFIER.fullmatch(identifier)
    if not parts:
        raise UsageError(
            "the name is no identifier of a secret, such as https://VAULT.vault.azure.net/secrets/NAME"
        )
    vault, name, version = parts.groups()
    try:
        value: str | None = _read(vault, name, version)
    except exceptions.ClientAuthenticationError:
        # The error lists all ways to log in that azure-identity has tried, on many lines; the log has it too.
        raise UsageError(
            "there are no valid credentials: run az login, or set AZURE_TENANT_ID, AZURE_CLIENT_ID and "
            "AZURE_CLIENT_SECRET"
        ) from None
    except exceptions.ResourceNotFoundError:
        raise UsageError(f"{vault} has no secret {name}: check vault, name and version") from None
    except exceptions.HttpResponseError as error:
        raise _refused(error) from None
    except exceptions.AzureError as error:
        raise ServiceError(
            f"{vault} does not answer ({type(error).__name__}): check its name and the network"
        ) from None
    if value is None:
        raise UsageError("it has no value")
    return value


def _read(vault: str, name: str, version: str | None) -> Any:
    limits = {"retry_total": 2, "connection_timeout": 10, "read_timeout": 10}
    with (
        DefaultAzureCredential() as credential,
        SecretClient(vault, credential, **limits) as client,
    ):
        return client.get_secret(name, version).value


def _refused(error: Any) -> Exception:
    status, code = error.status_code or 0, getattr(error.error, "code", None) or type(error).__name__
    if status == 403:
        return UsageError(
            f"no permission ({code}): grant the role Key Vault Secrets User, or allow secrets/get"
        )
    if status >= 500 or status == 429:
        return ServiceError(f"Azure Key Vault does not answer ({status})")
    return UsageError(f"Azure Key Vault refuses the request ({status}, {code})")
