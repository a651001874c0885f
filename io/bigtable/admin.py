"""Asks the admin API about a table and an app profile. Only the checks before a read import this module.

Credentials that may read a change stream may lack the right to call this API, and not every emulator has it. A refused
call therefore means "unknown" and is no error. If something is wrong, the first request of the read reports it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import grpc
from google.cloud.bigtable_admin_v2.types import bigtable_instance_admin, bigtable_table_admin
from google.cloud.bigtable_admin_v2.types import instance as instance_types
from google.cloud.bigtable_admin_v2.types import table as table_types

from penstock.io.bigtable.client import ADMIN_HOST, channel_to
from penstock.io.bigtable.source import ChangeStream, Connection
from penstock.io.change_streams.status import RETRYABLE, UnreachableError, status_of

_SECONDS = 30.0


class Admin:
    """The two calls."""

    def __init__(self, stream: ChangeStream, connection: Connection) -> None:
        self._stream = stream
        self._app_profile = connection.app_profile
        self._channel = channel_to(connection, ADMIN_HOST)

    def routing(self) -> str:
        """Return the name of the app profile's routing policy, or "" if it is unknown.

        Raises:
            UnreachableError: the service does not answer now.
        """
        name = f"{self._stream.instance_path}/appProfiles/{self._app_profile}"
        profile = self._get(
            "/google.bigtable.admin.v2.BigtableInstanceAdmin/GetAppProfile",
            bigtable_instance_admin.GetAppProfileRequest.pb()(name=name),
            instance_types.AppProfile.pb(),
        )
        return (profile.WhichOneof("routing_policy") or "") if profile is not None else ""

    def retention(self) -> int:
        """Return the change stream's retention period in nanoseconds, or 0 if it is unknown.

        Raises:
            UnreachableError: the service does not answer now.
        """
        table = self._get(
            "/google.bigtable.admin.v2.BigtableTableAdmin/GetTable",
            bigtable_table_admin.GetTableRequest.pb()(name=self._stream.table_path),
            table_types.Table.pb(),
        )
        return table.change_stream_config.retention_period.ToNanoseconds() if table is not None else 0

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _get(self, method: str, request: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        routing = [("x-goog-request-params", f"name={quote(request.name, safe='')}")]
        try:
            return call(request, timeout=_SECONDS, metadata=routing)
        except grpc.RpcError as error:
            code, details = error.code().name, error.details() or ""
            if status_of(code, details) not in RETRYABLE:
                return None
            raise UnreachableError(f"{self._stream}: {code}: {details}") from None
