"""Secrets of AWS Secrets Manager, through boto3.

Source: AWS Secrets Manager API reference, "GetSecretValue".
"""

from __future__ import annotations

from typing import Any

import boto3
from botocore import exceptions
from botocore.config import Config

from penstock.errors import ServiceError, UsageError

_CREDENTIALS = frozenset(
    (
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "UnrecognizedClientException",
    )
)


def content(name: str) -> str:
    """Return the content of the secret with a name or an ARN.

    Raises:
        UsageError: there is no such secret, no region, no credentials or no permission.
        ServiceError: the service does not answer.
    """
    try:
        answer = _client(name).get_secret_value(SecretId=name)
    except exceptions.NoRegionError:
        raise UsageError("no region is set: set AWS_DEFAULT_REGION, or write the ARN of the secret") from None
    except exceptions.ClientError as error:
        raise _refused(name, error) from None
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as error:
        raise ServiceError(f"AWS Secrets Manager does not answer ({type(error).__name__})") from None
    except exceptions.BotoCoreError as error:
        # Credentials that are missing or incomplete, a profile that does not exist, a token that cannot be fetched.
        text = f"there are no credentials ({error}): set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise UsageError(text) from None
    return _text(answer)


def _client(name: str) -> Any:
    # arn:PARTITION:secretsmanager:REGION:ACCOUNT:secret:NAME
    region = name.split(":")[3] if name.startswith("arn:") and name.count(":") >= 6 else None
    retries = {"mode": "standard", "total_max_attempts": 3}
    config = Config(connect_timeout=10, read_timeout=10, retries=retries)
    return boto3.session.Session().client("secretsmanager", region_name=region, config=config)


def _refused(name: str, error: Any) -> Exception:
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    if code == "ResourceNotFoundException":
        return UsageError(
            f"AWS Secrets Manager has no secret {name}: check name, region and account of the secret"
        )
    if code in _CREDENTIALS:
        return UsageError(f"AWS does not accept the credentials ({code}): renew them")
    if status >= 500 or "Throttl" in code:
        return ServiceError(f"AWS Secrets Manager does not answer ({code})")
    text = str(error).partition("\n")[0]
    if code.startswith("AccessDenied") or status == 403:
        allow = "secretsmanager:GetSecretValue, and kms:Decrypt if the secret has a key of its own"
        return UsageError(f"no permission ({text}): allow {allow}")
    return UsageError(text)


def _text(answer: Any) -> str:
    text: str | None = answer.get("SecretString")
    try:
        return answer["SecretBinary"].decode() if text is None else text
    except UnicodeDecodeError:
        raise UsageError("it is not UTF-8 text") from None
