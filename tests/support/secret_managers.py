"""The secret managers of the tests: AWS from moto, Vault from OpenBao, and answers for the clients of Google and Azure.

Each has `environment`, which leads the vendor's client to it, `put`, which stores a secret, and `deny`, after which
it refuses to show secrets.
"""

from __future__ import annotations

import json
import shutil
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import grpc
import hvac
import requests
from google.cloud.secretmanager_v1 import AccessSecretVersionRequest, AccessSecretVersionResponse

from penstock_emulators.server_process import ServerProcess, free_port
from tests.support.certificates import certificate
from tests.support.http_service import HttpService, SilentHandler

START_SECONDS = 60.0
REGION = "eu-central-1"
TOKEN = "token-of-the-tests"


class Aws:
    """AWS Secrets Manager of moto, which checks signatures and policies when it is told to."""

    kind = "aws-secret"

    def __init__(self, url: str) -> None:
        self.url = url
        self.environment = {
            "AWS_ENDPOINT_URL_SECRETS_MANAGER": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
        }

    def client(self, service: str) -> Any:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.session.Session(**keys).client(service, endpoint_url=self.url, region_name=REGION)

    def put(self, name: str, text: str) -> str:
        made: str = self.client("secretsmanager").create_secret(Name=name, SecretString=text)["ARN"]
        return made

    @contextmanager
    def deny(self) -> Iterator[Mapping[str, str]]:
        """While it is open, policies count. Yields the key of a user without any."""
        users = self.client("iam")
        users.create_user(UserName="stranger")
        key = users.create_access_key(UserName="stranger")["AccessKey"]
        self._check_after(0)
        try:
            yield {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
        finally:
            self._check_after(float("inf"))

    def _check_after(self, requests_: float) -> None:
        requests.post(f"{self.url}/moto-api/reset-auth", data=str(requests_), timeout=30).raise_for_status()


@contextmanager
def aws(folder: Path) -> Iterator[Aws]:
    """Run moto's server."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, port, folder / "moto.log"):
        yield Aws(f"http://127.0.0.1:{port}")


class Vault:
    """A development server of OpenBao with its key-value engine of version 2 at ``secret/``."""

    kind = "vault"

    def __init__(self, url: str) -> None:
        self.url = url
        self.environment = {"VAULT_ADDR": url, "VAULT_TOKEN": TOKEN}

    def client(self) -> Any:
        return hvac.Client(self.url, token=TOKEN)

    def put(self, name: str, text: str) -> str:
        path = f"secret/data/{name}"
        self.client().write_data(path, data={"data": json.loads(text)})
        return path

    @contextmanager
    def deny(self) -> Iterator[Mapping[str, str]]:
        """Yield a token without policies."""
        made = self.client().auth.token.create(policies=["default"])
        yield {"VAULT_TOKEN": made["auth"]["client_token"]}


@contextmanager
def vault(folder: Path) -> Iterator[Vault]:
    """Run OpenBao."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("bao")), "server", "-dev", "-dev-no-store-token"]
    command += [f"-dev-root-token-id={TOKEN}", f"-dev-listen-address=127.0.0.1:{port}"]
    with _running(command, port, folder / "bao.log"):
        client = hvac.Client(f"http://127.0.0.1:{port}", token=TOKEN)
        # It listens before its engines are mounted.
        end = time.monotonic() + START_SECONDS
        while "secret/" not in _mounts(client):
            assert time.monotonic() < end, "OpenBao has no key-value engine"
            time.sleep(0.02)
        yield Vault(f"http://127.0.0.1:{port}")


def _mounts(client: Any) -> Any:
    try:
        return client.sys.list_mounted_secrets_engines()
    except hvac.exceptions.VaultError:
        return {}


@contextmanager
def _running(command: list[str], port: int, log: Path) -> Iterator[None]:
    assert shutil.which(command[0]), f"{command[0]} is missing: make test installs it"
    process = ServerProcess(command, log)
    try:
        assert process.listens(port, time.monotonic() + START_SECONDS), log.read_text()
        yield
    finally:
        process.stop()


class Answers:
    """What a manager of this module answers: contents by name, or a refusal."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.denied = False
        self.asked: list[str] = []

    @contextmanager
    def deny(self) -> Iterator[Mapping[str, str]]:
        self.denied = True
        try:
            yield {}
        finally:
            self.denied = False


class Google(Answers):
    """Answers of Google's Secret Manager over gRPC."""

    kind = "gcp-secret"

    def __init__(self) -> None:
        super().__init__()
        self.host = ""
        self.environment: dict[str, str] = {}

    def put(self, name: str, text: str) -> str:
        path = f"projects/shop/secrets/{name}"
        self.contents[f"{path}/versions/latest"] = text.encode()
        return path

    def answer(self, request: Any, context: Any) -> Any:
        self.asked.append(request.name)
        if self.denied:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "denied")
        if request.name not in self.contents:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such secret")
        data = {"data": self.contents[request.name]}
        return AccessSecretVersionResponse(name=request.name, payload=data)


@contextmanager
def google() -> Iterator[Google]:
    """Serve on a free port; a test gives the client a channel to `host`."""
    answers, server = Google(), grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(
        answers.answer, AccessSecretVersionRequest.deserialize, AccessSecretVersionResponse.serialize
    )
    service = "google.cloud.secretmanager.v1.SecretManagerService"
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {"AccessSecretVersion": handler})]
    )
    answers.host = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield answers
    finally:
        server.stop(None)


class Azure(Answers):
    """Answers of Azure Key Vault, and of the service that gives a program of Azure its token.

    Source: Key Vault REST API reference, "Get Secret" and "Authentication, requests and responses"; App Service
    documentation, "REST endpoint reference" of managed identities.
    """

    kind = "azure-secret"

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.environment: dict[str, str] = {}

    def put(self, name: str, text: str) -> str:
        self.contents[f"/secrets/{name}/"] = text.encode()
        return f"{self.url}/secrets/{name}"

    def answer(self, path: str, authorization: str | None) -> tuple[int, Mapping[str, str], object]:
        if authorization is None:
            # A client trusts a resource that is a parent of the vault's name; the address is all the name there is.
            resource = self.url.replace("127.0.0.1", "0.0.1")
            challenge = f'Bearer authorization="{self.url}/tenant", resource="{resource}"'
            return 401, {"WWW-Authenticate": challenge}, _failure("Unauthorized")
        if authorization != f"Bearer {TOKEN}":
            return 401, {}, _failure("Unauthorized")
        self.asked.append(path)
        if self.denied:
            return 403, {}, _failure("Forbidden")
        if path not in self.contents:
            return 404, {}, _failure("SecretNotFound")
        return 200, {}, {"value": self.contents[path].decode(), "id": f"{self.url}{path}1", "attributes": {}}


def _failure(code: str) -> object:
    return {"error": {"code": code, "message": "refused"}}


@contextmanager
def azure(folder: Path) -> Iterator[Azure]:
    """Serve a vault over TLS and tokens over HTTP."""
    answers = Azure()

    class Vaults(SilentHandler):
        def do_GET(self) -> None:
            _send(self, *answers.answer(self.path.partition("?")[0], self.headers["Authorization"]))

    class Tokens(SilentHandler):
        def do_GET(self) -> None:
            _send(
                self, 200, {}, {"access_token": TOKEN, "expires_on": int(time.time()) + 3600, "resource": "r"}
            )

    certificate(folder, "server", certificate(folder, "authority"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    vaults = HttpService(Vaults)
    vaults.server.socket = context.wrap_socket(vaults.server.socket, server_side=True)
    with vaults, HttpService(Tokens) as tokens:
        answers.url = vaults.url.replace("http:", "https:")
        answers.environment = {
            "REQUESTS_CA_BUNDLE": str(folder / "authority.pem"),
            "IDENTITY_ENDPOINT": tokens.url,
            "IDENTITY_HEADER": "test",
        }
        yield answers


def _send(handler: SilentHandler, status: int, headers: Mapping[str, str], body: object) -> None:
    content = json.dumps(body).encode()
    handler.send_response(status)
    for name, value in {
        **headers,
        "Content-Type": "application/json",
        "Content-Length": len(content),
    }.items():
        handler.send_header(name, str(value))
    handler.end_headers()
    handler.wfile.write(content)
