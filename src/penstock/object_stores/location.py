"""Parses the location of a checkpoint or an output: a path of this machine, or a URL of an object store. Pure.

    /data/orders                                       a folder
    file:///data/orders                                the same folder
    s3://bucket/orders?region=eu-west-1                Amazon S3, and services with the same API
    s3://bucket/orders?endpoint=https://minio:9000     such a service
    gs://bucket/orders                                 Google Cloud Storage
    az://container/orders?account=mycompany            Azure Blob Storage
    abfss://container@mycompany.dfs.core.windows.net/orders   the same, as Spark writes it

Options are in the query of the URL, as in Go's CDK and in Arrow. So one text is enough to find the folder, also on the
workers of a cluster. It never holds a secret: credentials come from the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from penstock.errors import UsageError

UNAVAILABLE_SECONDS = 60.0
"""How long requests to a store that does not answer are repeated."""

_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
_SUPPORTED = "a path, or a URL that begins with s3://, gs://, az:// or file://"
_OPTIONS = {
    "s3": ("endpoint", "region", "unavailable_seconds"),
    "gs": ("endpoint", "unavailable_seconds"),
    "az": ("account", "endpoint", "unavailable_seconds"),
}
# Everything up to the host: an "@" in a path is fine.
_USER_INFO = re.compile(r"//[^/?#]*@")


@dataclass(frozen=True, slots=True)
class Location:
    """A prefix of a bucket (on Azure: of a container).

    `prefix` is a key without slashes at its ends, or "". `endpoint` is a URL, `account` an Azure storage account.
    Values that are None come from the environment.
    """

    scheme: str
    bucket: str
    prefix: str
    endpoint: str | None = None
    region: str | None = None
    account: str | None = None
    unavailable_seconds: float = UNAVAILABLE_SECONDS

    @property
    def url(self) -> str:
        """The URL without options: what users and readers of the output see."""
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    def __str__(self) -> str:
        """Return the URL with its options; `locate` reads it back."""
        options = {name: getattr(self, name) for name in _OPTIONS[self.scheme]}
        if self.unavailable_seconds == UNAVAILABLE_SECONDS:
            del options["unavailable_seconds"]
        else:
            options["unavailable_seconds"] = f"{self.unavailable_seconds:g}"
        query = "&".join(f"{name}={quote(value, safe=':/')}" for name, value in options.items() if value)
        return self.url + (f"?{query}" if query else "")

    def key(self, name: str) -> str:
        """Return the key of a name below the prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name


def is_url(text: str) -> bool:
    """Return whether `text` is a URL and not a path."""
    return "://" in text or text.startswith("file:/")


def locate(text: str | os.PathLike[str]) -> Location | str:
    """Return the location of a URL of an object store; the absolute path of anything else.

    Relative paths are resolved here, because workers may have another working directory.

    Raises:
        UsageError: the text is empty, its scheme is not supported, or it has a wrong part. The message does not repeat
            user names, passwords and values of unknown options.
    """
    text = os.fspath(text)
    if not text:
        raise UsageError(f"the location is empty; pass {_SUPPORTED}.")
    if not is_url(text):
        return os.path.abspath(text)
    shown = shown_url(text)
    parts = urlsplit(text)
    if parts.scheme == "file":
        return _path_of(parts.netloc, parts.path, bool(parts.query), shown)
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None:
        raise UsageError(
            f"{shown} has the scheme {parts.scheme}://, which is not supported; pass {_SUPPORTED}."
        )
    bucket, account = _bucket_and_account(parts.scheme, parts.netloc, shown)
    # Take the path as it is: the tools of the clouds do not decode "%20" in such a URL either.
    prefix = parts.path.strip("/")
    if parts.fragment or any(part in ("", ".", "..") for part in prefix.split("/") if prefix):
        raise UsageError(f"{shown} has a fragment or an empty part; pass {scheme}://{bucket}/a/b.")
    options = _options(scheme, parts.query, shown)
    account = options.get("account") or account
    return Location(
        scheme,
        bucket,
        prefix,
        endpoint=_endpoint(options.get("endpoint"), shown),
        region=options.get("region"),
        account=account,
        unavailable_seconds=_seconds(options.get("unavailable_seconds"), shown),
    )


def display_name(text: str | os.PathLike[str]) -> str:
    """Return a location for people: a path as it is, a URL without its options."""
    location = locate(text)
    return location if isinstance(location, str) else location.url


def shown_url(url: str) -> str:
    """Return a URL without user, password, options and fragment, for messages."""
    return _USER_INFO.sub("//", re.split(r"[?#]", url, maxsplit=1)[0])


def _path_of(host: str, path: str, has_options: bool, shown: str) -> str:
    if host not in ("", "localhost") or not path.startswith("/") or has_options:
        raise UsageError(f"{shown} is not a path of this machine; write file:///folder, without options.")
    return os.path.abspath(unquote(path))


def _bucket_and_account(scheme: str, authority: str, shown: str) -> tuple[str, str | None]:
    if scheme in ("abfs", "abfss") and authority.count("@") == 1:
        container, host = authority.split("@")
        account = host.partition(".")[0]
        if container and account and ":" not in authority:
            return container, account
    if not authority or "@" in authority or ":" in authority:
        raise UsageError(
            f"{shown} must name a bucket after the scheme and nothing else: user names, passwords and ports do not "
            "belong there. Credentials come from the environment; the endpoint is an option (?endpoint=https://host)."
        )
    return authority, None


def _options(scheme: str, query: str, shown: str) -> Mapping[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    names = [name for name, _ in pairs]
    wrong = sorted({name for name in names if name not in _OPTIONS[scheme] or names.count(name) > 1})
    if wrong or not all(value for _, value in pairs):
        # Do not even show the names of wrong options: `?AKIA…` is a query with one name, which may be a secret.
        raise UsageError(
            f"{shown} has an option that is unknown, empty or repeated; the options of {scheme}:// are "
            f"{', '.join(_OPTIONS[scheme])}. Credentials come from the environment."
        )
    return dict(pairs)


def _endpoint(endpoint: str | None, shown: str) -> str | None:
    if endpoint is None:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc or parts.query:
        raise UsageError(
            f"the endpoint of {shown} must be a URL without user, password and options, for example "
            "endpoint=https://minio.example.com:9000."
        )
    return endpoint.rstrip("/")


def _seconds(value: str | None, shown: str) -> float:
    try:
        seconds = float(value or UNAVAILABLE_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86_400:
        raise UsageError(f"unavailable_seconds of {shown} must be a number of seconds from 1 to 86400.")
    return seconds
