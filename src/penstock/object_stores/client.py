"""Requests through obstore (Rust's object_store): one library for S3, Google Cloud Storage and Azure Blob Storage.

obstore never repeats a request here (`max_retries=0`). Repeated by the library, a conditional put may be answered with
"exists" for the caller's own object, and nothing in the exception says so (read in obstore 0.12). `store` repeats.

obstore must not be used before a fork: in the child every request hangs without limit, and after the child's first
request the parent's hang too (tried with 0.12.1). Spark's workers are forked from a daemon that makes no
requests, so each worker makes a client when it needs one. `_refuse_after_fork` turns a hang into an error.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock.errors import InvariantError, UsageError
from penstock.extras import extra_packages
from penstock.object_stores.location import Location
from penstock.object_stores.requests import (
    Listed,
    ObjectExistsError,
    ObjectMissingError,
    RequestRefusedError,
    RequestUncertainError,
)
from penstock.object_stores.store import ObjectStore, in_parallel

CONNECT_SECONDS = 5
REQUEST_SECONDS = 10
"""Time-out of a request with a small body, and of a download that makes no progress."""

DOWNLOAD_SECONDS = 3600
"""Time-out of a whole download, whose size is not known before."""

BYTES_PER_SECOND = 1 << 20
"""The slowest upload that is still awaited. The time-out of an upload counts the whole request with its body."""

EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure"}

_STATUS = re.compile(r"status code: (\d{3})")
_KIND = re.compile(r"kind: (Timeout|Connect|Request|Decode|Interrupted|Unknown)")
# Options of delta-rs that concern its own commits or clients, and none that obstore's stores have.
_OPTION = re.compile(
    r"(?:aws|google|azure)_(?!allow_http|s3_|conditional_put|copy_if_not_exists|force_credential_load)"
)
_CREDENTIAL = re.compile(r"access_key|account_key|sas_|client_secret|service_account|application_credentials")
_TEMPORARY = {408, 409, 425, 429}
_REASONS = {
    301: "301, so the region or the endpoint is wrong",
    400: "400 Bad Request",
    401: "401 Unauthorized",
    403: "403 Forbidden",
    404: "404 Not Found, so the bucket is missing",
    409: "409 Conflict",
    429: "429 Too Many Requests",
    503: "503 Service Unavailable",
}
_KINDS = {"Timeout": "a time-out", "Connect": "no connection", "Decode": "an unreadable answer"}

_first_use: int | None = None
"""The id of the process that made the first request."""


def store_at(location: Location) -> ObjectStore:
    """Return the store of a location. Nothing is sent, and obstore is not imported, before the first request."""
    return ObjectStore(location.url, ObstoreRequests(location), location.unavailable_seconds)


class ObstoreRequests:
    """`penstock.object_stores.requests.Requests` on obstore. Equal for equal locations.

    Pickles without credentials, unless `options` has some: pairs of names and values as delta-rs has them, such as
    AWS_ENDPOINT_URL.
    """

    def __init__(self, location: Location, options: Sequence[tuple[str, str]] = ()) -> None:
        self._location = location
        self._options = tuple(options)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ObstoreRequests)
            and other._location == self._location
            and other._options == self._options
        )

    def __hash__(self) -> int:
        return hash(self._location)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        obstore = _library(self._location)
        with _translated_errors():
            # One request, however long: a multipart upload leaves its parts behind if this process is killed.
            obstore.put(self._client(len(data)), key, data, mode="create", use_multipart=False)

    def get(self, key: str) -> bytes:
        obstore = _library(self._location)
        with _translated_errors():
            return bytes(obstore.get(self._client(download=True), key).bytes())

    def size(self, key: str) -> int:
        obstore = _library(self._location)
        with _translated_errors():
            return int(obstore.head(self._client(), key)["size"])

    def list_objects(self, folder: str) -> list[Listed]:
        obstore = _library(self._location)
        with _translated_errors():
            objects = obstore.list(self._client(), folder + "/").collect()
        return [Listed(str(each["path"])[len(folder) + 1 :], int(each["size"])) for each in objects]

    def list_children(self, folder: str) -> list[str]:
        obstore = _library(self._location)
        with _translated_errors():
            listing = obstore.list_with_delimiter(self._client(), folder + "/" if folder else None)
        paths = [*listing["common_prefixes"], *(each["path"] for each in listing["objects"])]
        return [str(path).rstrip("/").rpartition("/")[2] for path in paths]

    def delete(self, keys: Sequence[str]) -> None:
        obstore = _library(self._location)
        # S3 deletes many keys in one request. The others delete one by one, and a missing key would be an error that
        # hides what became of the rest.
        if self._location.scheme == "s3" and len(keys) > 1:
            with _translated_errors():
                obstore.delete(self._client(), list(keys))
            return

        def delete(key: str) -> None:
            try:
                with _translated_errors():
                    obstore.delete(self._client(), key)
            except ObjectMissingError:
                return

        in_parallel(delete, keys)

    def copy_if_absent(self, source: str, target: str) -> None:
        obstore = _library(self._location)
        with _translated_errors():
            obstore.copy(self._client(), source, target, overwrite=False)

    @property
    def copies_if_absent(self) -> bool:
        return self._location.scheme in ("gs", "az")

    def _client(self, upload_bytes: int = 0, download: bool = False) -> Any:
        _refuse_after_fork()
        if download:
            return _client_of(self._location, DOWNLOAD_SECONDS, self._options)
        # Powers of two, so that there are few clients: each has its own connections.
        seconds = REQUEST_SECONDS
        while seconds < upload_bytes // BYTES_PER_SECOND:
            seconds *= 2
        return _client_of(self._location, seconds, self._options)


def _library(location: Location) -> Any:
    """Return obstore, which is an extra. The import takes 30 ms, so pipelines on local disks do without it."""
    with extra_packages(EXTRAS[location.scheme]):
        import obstore.store
    return obstore


def _refuse_after_fork() -> None:
    global _first_use
    if _first_use is None:
        _first_use = os.getpid()
    elif _first_use != os.getpid():
        raise InvariantError(
            "this process was forked from one that has used an object store; the client would hang. Start it with "
            "multiprocessing's method 'spawn', or make no requests before the fork"
        )


@functools.lru_cache(maxsize=64)
def _client_of(location: Location, seconds: int, more: tuple[tuple[str, str], ...] = ()) -> Any:
    """Return obstore's store for a location; it keeps its connections as long as the process lives."""
    library = _library(location)
    make = {"s3": _s3, "gs": _gcs, "az": _azure}[location.scheme]
    endpoint, arguments = make(location)
    endpoint = _add_options(arguments, {name.lower(): value for name, value in more}) or endpoint
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=seconds),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "user_agent": "penstock",
    }
    if seconds == DOWNLOAD_SECONDS:
        # Between two packets. Not for uploads: nothing is read while a body is sent.
        options["read_timeout"] = timedelta(seconds=REQUEST_SECONDS)
    if endpoint and endpoint.startswith("http://"):
        options["allow_http"] = True
    kinds = {"s3": library.store.S3Store, "gs": library.store.GCSStore, "az": library.store.AzureStore}
    with _translated_errors():
        return kinds[location.scheme](
            location.bucket,
            prefix=location.prefix or None,
            client_options=options,
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=seconds)},
            **arguments,
        )


def _add_options(arguments: dict[str, Any], options: Mapping[str, str]) -> str | None:
    """Add options of delta-rs, whose names are in lower case, to arguments of obstore. Return the endpoint, if any."""
    endpoint = (
        options.get("aws_endpoint_url_s3") or options.get("aws_endpoint_url") or options.get("aws_endpoint")
    )
    known = {name: value for name, value in options.items() if _OPTION.match(name)}
    arguments["config"] = {**arguments.get("config", {}), **known}
    if endpoint:
        arguments["config"] = {
            name: value for name, value in arguments["config"].items() if "endpoint" not in name
        }
        arguments["config"]["aws_endpoint_url_s3"] = endpoint
    # obstore takes one of both.
    if any(_CREDENTIAL.search(name) for name in known):
        arguments.pop("credential_provider", None)
    return endpoint


def _s3(location: Location) -> tuple[str | None, dict[str, Any]]:
    """Endpoint and arguments for S3. Credentials are found in the order of Amazon's own tools."""
    endpoint = (
        location.endpoint
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or None
    )
    config: dict[str, Any] = {}
    if endpoint:
        # Not the argument `endpoint`: the environment variable AWS_ENDPOINT_URL_S3 would win over it (obstore 0.12).
        config["aws_endpoint_url_s3"] = endpoint
    arguments: dict[str, Any] = {"config": config}
    if not _has_s3_credentials() and _has_aws_profile():
        from obstore.auth.boto3 import Boto3CredentialProvider

        provider = Boto3CredentialProvider()
        config |= provider.config
        arguments["credential_provider"] = provider
    if region := location.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        config["region"] = region
    return endpoint, arguments


def _has_s3_credentials() -> bool:
    """Whether obstore finds credentials in the environment: keys, a role of a pod, a role of a container."""
    return not os.environ.get("AWS_PROFILE") and any(
        os.environ.get(name)
        for name in (
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        )
    )


def _has_aws_profile() -> bool:
    """Whether the user has profiles, which only Amazon's own library reads (SSO, assumed roles, processes)."""
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    return bool(os.environ.get("AWS_PROFILE")) or any(Path(file).expanduser().is_file() for file in files)


def _gcs(location: Location) -> tuple[str | None, dict[str, Any]]:
    """Endpoint and arguments for Google Cloud Storage: application default credentials."""
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator and "://" not in emulator:
        emulator = f"http://{emulator}"
    endpoint = location.endpoint or emulator or None
    if endpoint and (emulator or endpoint.startswith("http://")):
        # An emulator knows no credentials. obstore has no option for that but a service account without a key.
        account = {
            "gcs_base_url": endpoint,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return endpoint, {"config": {"service_account_key": json.dumps(account)}}
    from obstore.auth.google import GoogleCredentialProvider

    config = {"base_url": endpoint} if endpoint else {}
    return endpoint, {"config": config, "credential_provider": GoogleCredentialProvider()}


def _azure(location: Location) -> tuple[str | None, dict[str, Any]]:
    """Endpoint and arguments for Azure: the variables of Azure's command line, else of its identity library."""
    environment = os.environ
    account = (
        location.account
        or environment.get("AZURE_STORAGE_ACCOUNT_NAME")
        or environment.get("AZURE_STORAGE_ACCOUNT")
    )
    if not account:
        raise UsageError(
            f"{location.url} needs the name of a storage account: add ?account=NAME to the URL, or set "
            "AZURE_STORAGE_ACCOUNT on the driver and on all workers."
        )
    endpoint = location.endpoint or environment.get("AZURE_STORAGE_ENDPOINT") or None
    config: dict[str, Any] = {"account_name": account}
    if endpoint:
        config["endpoint"] = endpoint
    arguments: dict[str, Any] = {"config": config}
    if key := environment.get("AZURE_STORAGE_ACCOUNT_KEY") or environment.get("AZURE_STORAGE_KEY"):
        config["account_key"] = key
    elif sas := environment.get("AZURE_STORAGE_SAS_TOKEN"):
        config["sas_key"] = sas
    else:
        try:
            from obstore.auth.azure import AzureCredentialProvider
        except ImportError:
            # Without azure-identity obstore itself finds client secrets, workload identities and managed identities.
            return endpoint, arguments
        arguments["credential_provider"] = AzureCredentialProvider()
    return endpoint, arguments


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turn an exception of obstore into one of `requests`, without its text.

    The text shows the URL of the endpoint with user and password, and the server's answer, which may hold signatures.
    So only the status and the kind of the failure are taken from it. `from None` keeps it out of tracebacks too.
    """
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError:
        raise ObjectMissingError from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise ObjectExistsError from None
    except exceptions.BaseError as error:
        raise _translated(str(error), type(error).__name__) from None
    except (InvariantError, UsageError):
        raise
    except Exception as error:
        # A credential provider of a cloud's library failed; its text may name accounts, but also tokens.
        raise RequestRefusedError(f"no credentials ({type(error).__name__})") from None


def _translated(text: str, kind: str) -> Exception:
    if found := _STATUS.search(text):
        status = int(found[1])
        reason = _REASONS.get(status, f"status {status}")
        temporary = status >= 500 or status in _TEMPORARY
        return RequestUncertainError(reason) if temporary else RequestRefusedError(reason)
    if "Received redirect" in text:
        return RequestRefusedError(_REASONS[301])
    if "HTTP error" in text or "error decoding response body" in text:
        failure = _KIND.search(text)
        return RequestUncertainError(_KINDS.get(failure[1] if failure else "", "a lost connection"))
    return RequestRefusedError(kind)
