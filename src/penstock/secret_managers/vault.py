"""Secrets of HashiCorp Vault, and of OpenBao, which has the same API, through hvac.

Source: Vault documentation, "HTTP API", "KV secrets engine".
"""

from __future__ import annotations

import json
import os
from typing import Any

import hvac
from requests.exceptions import RequestException

from penstock.errors import ServiceError, UsageError


def content(path: str) -> str:
    """Return the fields at a path of the HTTP API as a JSON object; of the latest version.

    Raises:
        UsageError: there is no such secret, or the token does not permit to read it.
        ServiceError: the server does not answer.
    """
    # hvac reads VAULT_ADDR, VAULT_TOKEN, ~/.vault-token and the variables of certificates, but not this one.
    client = hvac.Client(namespace=os.environ.get("VAULT_NAMESPACE"))
    try:
        answer = client.read(path)
    except (hvac.exceptions.Forbidden, hvac.exceptions.Unauthorized):
        raise UsageError(_no_permission(client.token, path)) from None
    except (hvac.exceptions.InvalidRequest, hvac.exceptions.ParamValidationError) as error:
        raise UsageError(f"Vault refuses the request: {'; '.join(map(str, error.args))}") from None
    except (hvac.exceptions.VaultError, RequestException) as error:
        raise ServiceError(
            f"Vault at {client.url} does not answer ({type(error).__name__}): check VAULT_ADDR"
        ) from None
    fields = _fields(answer)
    if fields is None:
        raise UsageError(
            f"Vault has no secret at {path}. Write the path of the HTTP API: a key-value engine of version 2 has data "
            "after its mount, as in secret/data/shop"
        )
    return json.dumps(fields)


def _no_permission(token: str | None, path: str) -> str:
    if not token:
        return "there is no token: set VAULT_TOKEN, or set VAULT_ADDR to an agent that logs in"
    return f"no permission: renew the token, or allow it to read {path}"


def _fields(answer: Any) -> Any:
    data = answer["data"] if isinstance(answer, dict) else None
    # Version 2 of the key-value engine has the fields one level deeper, beside metadata.
    return data["data"] if isinstance(data, dict) and data.keys() == {"data", "metadata"} else data
