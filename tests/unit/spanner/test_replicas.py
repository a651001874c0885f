"""Directed reads: each query names the chosen replicas and its priority."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.io.spanner.client import _request_options
from penstock.io.spanner.replicas import Replica, Replicas
from penstock.io.spanner.source import Connection


def test_replicas_are_locations_types_or_both_in_the_order_of_preference() -> None:
    found = Replicas.checked(["us-east1:READ_ONLY", "us-east4", ":READ_WRITE"], [], False)
    assert found.include == (
        Replica("us-east1", "READ_ONLY"),
        Replica("us-east4", ""),
        Replica("", "READ_WRITE"),
    )
    assert not found.auto_failover


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["us-east1"], ["us-east4"], True), "both given"),
        (([], [], False), "auto_failover=False is for include_replicas"),
        (
            (["us-east1:FAST"], [], True),
            "include_replicas has 'us-east1:FAST'.*types are READ_WRITE and READ_ONLY",
        ),
        (([], [""], True), "exclude_replicas has ''"),
        (("us-east1", [], True), "is not a list of texts"),
        ((["us-east1"] * 11, [], True), "at most 10"),
    ],
)
def test_wrong_replicas_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Replicas.checked(*arguments)


def test_every_query_carries_priority_and_replicas() -> None:
    replicas = Replicas.checked(["us-east1:READ_ONLY", "us-east4"], [], False)
    request = _request_options(Connection(rpc_priority="LOW", replicas=replicas))
    include = request.directed_read_options.include_replicas
    assert request.request_options.priority == 1
    assert [(each.location, each.type_) for each in include.replica_selections] == [
        ("us-east1", 2),
        ("us-east4", 0),
    ]
    assert include.auto_failover_disabled
    exclude = _request_options(Connection(replicas=Replicas.checked([], [":READ_WRITE"], True)))
    assert exclude.directed_read_options.exclude_replicas.replica_selections[0].type_ == 1


def test_without_options_the_service_chooses() -> None:
    request = _request_options(Connection())
    assert not request.HasField("directed_read_options")
    assert not request.HasField("request_options")
