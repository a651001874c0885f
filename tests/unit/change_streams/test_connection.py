"""Addresses of emulators, and credentials that are missing."""

from __future__ import annotations

import pytest

from penstock.errors import SetupError, UsageError
from penstock.io.bigtable import ReadFromBigtableChangeStream
from penstock.io.change_streams.connection import check_address
from penstock.io.change_streams.credentials import explained_credentials
from penstock.io.spanner import ReadFromSpannerChangeStream


@pytest.mark.parametrize(
    "address",
    [
        "http://localhost:9010",
        "localhost",
        "localhost:",
        ":9010",
        "localhost:0",
        "host:99999",
        "a b:1",
        "::1:9010",
    ],
)
def test_an_address_that_is_not_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="must be host:port without a scheme, such as localhost:9010, not"):
        check_address("emulator_host", address)


@pytest.mark.parametrize(
    "address", ["localhost:9010", "127.0.0.1:1", "[::1]:65535", "spanner-emulator.ci:9010"]
)
def test_host_and_port_are_accepted(address: str) -> None:
    check_address("emulator_host", address)


def test_the_variable_of_each_emulator_is_checked_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANNER_EMULATOR_HOST", "http://localhost:9010")
    with pytest.raises(UsageError, match=r"emulator_host \(or SPANNER_EMULATOR_HOST\)"):
        ReadFromSpannerChangeStream(project="p", instance="i", database="d", change_stream="C")
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "localhost")
    with pytest.raises(UsageError, match=r"emulator_host \(or BIGTABLE_EMULATOR_HOST\)"):
        ReadFromBigtableChangeStream(project="p", instance="i", table="t")


def test_missing_credentials_say_what_to_do() -> None:
    from google.auth.exceptions import DefaultCredentialsError

    advice = "gcloud auth application-default login.*for an emulator, set SPANNER_EMULATOR_HOST.*google-auth said: gone"
    with pytest.raises(SetupError, match=advice), explained_credentials("SPANNER_EMULATOR_HOST"):
        raise DefaultCredentialsError("gone")
