"""Pure modules can be imported without Beam and without a cloud client, also through their packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHARED = (
    "penstock.errors",
    "penstock.lazy",
    "penstock.timestamps",
    *(
        f"penstock.io.change_streams.{name}"
        for name in (
            "arguments", "backoff", "connection", "frontier", "metrics", "packing", "prefetch", "process_local",
            "protobuf", "settings", "source", "status",
        )
    ),
)  # fmt: skip
OF_EACH_SOURCE = (
    "decode", "errors", "filter", "frontier", "keys", "metrics", "pool", "prefetch", "preflight", "query", "reader",
    "record", "reopen", "source", "state", "steps", "wire",
)  # fmt: skip
SPANNER = {*OF_EACH_SOURCE, "clock", "json_lines"} - {"filter", "keys", "reopen"}
# The requests of Bigtable are protobufs of its client library, so `query` is loaded with the client.
BIGTABLE = {*OF_EACH_SOURCE, "change_log"} - {"query", "state"}

HEAVY = ("apache_beam", "grpc", "google.cloud", "google.auth", "pyspark")


@pytest.mark.parametrize(
    "modules",
    [
        SHARED,
        sorted(f"penstock.io.spanner.{name}" for name in SPANNER),
        sorted(f"penstock.io.bigtable.{name}" for name in BIGTABLE),
    ],
    ids=["shared", "spanner", "bigtable"],
)
def test_pure_modules_import_neither_beam_nor_a_cloud_client(modules: list[str]) -> None:
    program = (
        f"import sys, importlib\nfor name in {list(modules)!r}: importlib.import_module(name)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("source", ["spanner", "bigtable"])
def test_every_public_name_of_a_source_can_be_loaded(source: str) -> None:
    program = (
        f"import penstock.io.{source} as package\n"
        "print([name for name in package.__all__ if getattr(package, name) is None])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
