"""Servers of object stores, each from a public registry, on a free port of loopback.

    with MOTO.start(folder) as server:
        pipeline.run(checkpoint_dir=server.url("checkpoint"), environment=server.environment)

A server has a separate process group, which ends with the context. `MOTO` is a package of the test extra. The others
are installed by `python -m tools.object_store_servers` into ~/.cache/penstock/servers (or PENSTOCK_SERVERS).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlencode

from penstock_emulators.server_process import ServerProcess, free_port

BUCKET = "bucket"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testsecret", "AWS_REGION": "us-east-1"}
AZURE_ACCOUNT = "devstoreaccount1"
# The published key of every Azurite.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
START_SECONDS = 60.0
ROOT = Path(__file__).resolve().parents[3]
_MOTO_SERVER = Path(__file__).with_name("moto_server.py")


class ServerNotFoundError(Exception):
    """The server is not installed; the message says how to get it."""


def installed(*parts: str) -> str:
    """Return the path of a program below the folder of installed servers."""
    home = Path(os.environ.get("PENSTOCK_SERVERS", Path.home() / ".cache" / "penstock" / "servers"))
    path = home.joinpath(*parts)
    if not path.exists():
        raise ServerNotFoundError(f"{path} is missing; run python -m tools.object_store_servers {parts[-1]}")
    return str(path)


@dataclass(frozen=True)
class RunningServer:
    """A server that listens on `port` of loopback and has the bucket `BUCKET`."""

    kind: Server
    port: int
    process: ServerProcess

    @property
    def environment(self) -> dict[str, str]:
        """The credentials, as the cloud's own tools expect them."""
        return dict(self.kind.environment)

    def url(self, prefix: str, port: int | None = None) -> str:
        """Return the URL of a prefix; `port` is that of a proxy before the server."""
        endpoint = f"http://127.0.0.1:{port or self.port}{self.kind.endpoint_path}"
        return f"{self.kind.scheme}://{BUCKET}/{prefix}?{self.kind.options}endpoint={endpoint}"


@dataclass(frozen=True)
class Server:
    """How to start a kind of server, and how to make a bucket in it."""

    name: str
    scheme: str
    command: Callable[[int, str], Sequence[str]]
    make_bucket: Callable[[int, str], None]
    environment: Mapping[str, str] = field(default_factory=lambda: KEYS)
    endpoint_path: str = ""
    options: str = ""

    @contextmanager
    def start(self, folder: Path) -> Iterator[RunningServer]:
        """Start the server; its data and its log are in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        port, data = free_port(), str(folder / "data")
        os.makedirs(data, exist_ok=True)
        process = ServerProcess(self.command(port, data), folder / "log")
        try:
            if not process.listens(port, time.monotonic() + START_SECONDS):
                raise RuntimeError(f"{self.name} did not listen; read {folder / 'log'}")
            self.make_bucket(port, data)
            yield RunningServer(self, port, process)
        finally:
            process.stop()


def _make_folder(port: int, data: str) -> None:
    os.makedirs(f"{data}/{BUCKET}", exist_ok=True)


def _put_bucket(port: int, data: str) -> None:
    """Create a bucket in a server that does not check signatures."""
    _put(port, f"/{BUCKET}", {})


def _put_container(port: int, data: str) -> None:
    query = {"restype": "container"}
    path = f"/{AZURE_ACCOUNT}/{BUCKET}"
    _put(port, f"{path}?{urlencode(query)}", signed_for_azure("PUT", path, query))


def signed_for_azure(method: str, path: str, query: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a request without a body, with the signature ("Shared Key") that Azurite checks.

    `path` begins with the account and is percent-encoded.
    """
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = [f"{name}:{value}" for name, value in headers.items()]
    resource = [f"/{AZURE_ACCOUNT}{path}", *(f"{name}:{query[name]}" for name in sorted(query))]
    text = method + "\n" * 12 + "\n".join(lines + resource)
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    return headers | {"Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"}


def _put(port: int, path: str, headers: Mapping[str, str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("PUT", path, headers={**headers, "Content-Length": "0"})
    answer = connection.getresponse()
    if answer.status not in (200, 201):
        raise RuntimeError(f"no bucket: {answer.status} {answer.read()!r}")
    connection.close()


MOTO = Server(
    "moto",
    "s3",
    lambda port, data: [sys.executable, str(_MOTO_SERVER), "-H", "127.0.0.1", "-p", str(port)],
    _put_bucket,
)
"""S3 in memory, in Python. Two of its 4 ms for a put are Python's."""

VERSITYGW = Server(
    "versitygw",
    "s3",
    lambda port, data: [
        *(installed("bin", "versitygw"), "--port", f"127.0.0.1:{port}", "--access", "test"),
        *("--secret", "testsecret", "posix", data),
    ],
    _make_folder,
)
"""S3 on a disk, in Go. It cannot hold both keys `a` and `a/b`."""

AZURITE = Server(
    "azurite",
    "az",
    lambda port, data: [
        *("node", installed("npm", "node_modules", ".bin", "azurite-blob"), "--blobHost", "127.0.0.1"),
        *(
            "--blobPort",
            str(port),
            "--inMemoryPersistence",
            "--skipApiVersionCheck",
            "--disableTelemetry",
            "--silent",
        ),
    ],
    _put_container,
    environment={"AZURE_STORAGE_KEY": AZURE_KEY},
    endpoint_path=f"/{AZURE_ACCOUNT}",
    options=f"account={AZURE_ACCOUNT}&",
)
"""Microsoft's emulator of Azure Blob Storage, in JavaScript."""

S3RVER = Server(
    "s3rver",
    "s3",
    lambda port, data: [
        *(
            "node",
            installed("npm", "node_modules", ".bin", "s3rver"),
            "-a",
            "127.0.0.1",
            "-p",
            str(port),
            "-d",
            data,
        ),
        *("--no-vhost-buckets", "--configure-bucket", BUCKET),
    ],
    lambda port, data: None,
    environment={"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER", "AWS_REGION": "us-east-1"},
)
"""An S3 server that accepts the header of a conditional put and overwrites. Penstock must refuse it."""

GCS = Server(
    "gcs",
    "gs",
    lambda port, data: [
        sys.executable,
        str(ROOT / "tests" / "support" / "object_stores" / "gcs_server.py"),
        str(port),
        BUCKET,
    ],
    lambda port, data: None,
    environment={},
)
"""Our own stand-in for Google Cloud Storage. It proves that our requests fit each other, not that they fit Google's
service: no emulator that was tried implements the XML API that obstore uses."""
