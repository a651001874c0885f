"""Administration of tables and app profiles.

Google's emulator has no change streams and no app profiles, and it collects garbage at any time. So the front keeps
change_stream_config and the garbage-collection rules, and adds them to the tables that it returns.
"""

from __future__ import annotations

from typing import Any

import grpc
from google.cloud.bigtable_admin_v2.types import bigtable_instance_admin as instance_types
from google.cloud.bigtable_admin_v2.types import bigtable_table_admin as admin_types
from google.cloud.bigtable_admin_v2.types import table as table_types
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, empty_pb2

from penstock_emulators.bigtable.backend import CODES, TABLE_ADMIN, Backend, CallError
from penstock_emulators.bigtable.families import copied, impossible, modified
from penstock_emulators.bigtable.profiles import ProfileError, Profiles
from penstock_emulators.bigtable.table import DAY_US, Table
from penstock_emulators.bigtable.tables import Tables, now_us
from penstock_emulators.bigtable.unbroken import Unbroken

_Table = table_types.Table.pb()
_Create = admin_types.CreateTableRequest.pb()
_Get = admin_types.GetTableRequest.pb()
_Update = admin_types.UpdateTableRequest.pb()
_UpdateMetadata = admin_types.UpdateTableMetadata.pb()
_Delete = admin_types.DeleteTableRequest.pb()
_Modify = admin_types.ModifyColumnFamiliesRequest.pb()

_CONFIG = "change_stream_config"


class TableAdmin:
    """Calls of BigtableTableAdmin that the front does not only forward. Requests and responses are bytes."""

    def __init__(self, backend: Backend, tables: Tables) -> None:
        """Forward to `backend` and keep `tables` up to date."""
        self._backend = backend
        self._tables = tables
        self._unbroken = Unbroken()

    async def create(self, body: bytes, context: Any) -> bytes:
        """CreateTable, with change_stream_config; initial_splits are the first partitions of the stream."""
        return await self._unbroken.run(self._create(_Create.FromString(body), context))

    async def _create(self, request: Any, context: Any) -> bytes:
        retention_us = _retention_us(request.table) if request.table.HasField(_CONFIG) else None
        families = {name: copied(family) for name, family in request.table.column_families.items()}
        # The backend does not know the field, and would apply the rules without a record.
        request.table.ClearField(_CONFIG)
        _hide_rules(request.table.column_families)
        # Locked until the front knows the table too: a write to the new table must not pass before its stream is on.
        async with self._tables.altering(f"{request.parent}/tables/{request.table_id}"):
            answer = await self._backend.unary(
                TABLE_ADMIN + "CreateTable", request.SerializeToString(), context
            )
            created = _Table.FromString(answer)
            # A table of this name may have been deleted before; its stream must not continue.
            self._tables.forget(created.name)
            table = self._tables.add(created.name, families)
            table.first_boundaries = tuple(split.key for split in request.initial_splits)
            if retention_us is not None:
                table.switch_on(retention_us, now_us)
        return bytes(_shown(created, table).SerializeToString())

    async def get(self, body: bytes, context: Any) -> bytes:
        """GetTable."""
        answer = await self._backend.unary(TABLE_ADMIN + "GetTable", body, context)
        table = self._tables.known(_Get.FromString(body).name)
        return (
            answer if table is None else bytes(_shown(_Table.FromString(answer), table).SerializeToString())
        )

    async def update(self, body: bytes, context: Any) -> bytes:
        """UpdateTable: the front changes change_stream_config, the backend the rest. The operation is done at once."""
        request = _Update.FromString(body)
        ours = [path for path in request.update_mask.paths if path.split(".")[0] == _CONFIG]
        if not ours:
            return await self._backend.unary(TABLE_ADMIN + "UpdateTable", body, context)
        return await self._unbroken.run(self._update(request, ours, context))

    async def _update(self, request: Any, ours: list[str], context: Any) -> bytes:
        retention_us = _retention_us(request.table) if request.table.HasField(_CONFIG) else None
        theirs = [path for path in request.update_mask.paths if path not in ours]
        async with self._tables.altering(request.table.name):
            table = await self._tables.get(request.table.name)
            # The backend first: if it refuses its part of the request, the stream must not have changed.
            if theirs:
                request.update_mask.paths[:] = theirs
                body = request.SerializeToString()
                await self._backend.unary(TABLE_ADMIN + "UpdateTable", body, context)
            # Asked after the change, so the answer has what the backend has made of it.
            schema = await self._backend.table(table.name)
            if retention_us is None:
                table.switch_off()
            else:
                table.switch_on(retention_us, now_us)
        return _done(_shown(schema, table))

    async def delete(self, body: bytes, context: Any) -> bytes:
        """DeleteTable; open streams of the table end with NOT_FOUND."""
        return await self._unbroken.run(self._delete(_Delete.FromString(body).name, body, context))

    async def _delete(self, name: str, body: bytes, context: Any) -> bytes:
        async with self._tables.altering(name):
            # The backend first: a table that it could not delete keeps its stream.
            answer = await self._backend.unary(TABLE_ADMIN + "DeleteTable", body, context)
            self._tables.forget(name)
        return answer

    async def modify_families(self, body: bytes, context: Any) -> bytes:
        """ModifyColumnFamilies; the stream has no record of it, as schema changes have none.

        No write runs at the same time: a write that was checked against the old families could be half applied.
        """
        return await self._unbroken.run(self._modify_families(_Modify.FromString(body), context))

    async def _modify_families(self, request: Any, context: Any) -> bytes:
        forwarded = copied(request)
        for modification in forwarded.modifications:
            for kind in ("create", "update"):
                if modification.HasField(kind):
                    getattr(modification, kind).ClearField("gc_rule")
        async with self._tables.altering(request.name):
            table = await self._tables.get(request.name)
            # All modifications are checked before one is made, because they apply all or none.
            if (refusal := impossible(table.families, request.modifications)) is not None:
                raise CallError(CODES[refusal.code], refusal.message)
            answer = await self._backend.unary(
                TABLE_ADMIN + "ModifyColumnFamilies", forwarded.SerializeToString(), context
            )
            schema = _Table.FromString(answer)
            table.set_families(modified(table.families, request.modifications, schema.column_families))
        return bytes(_shown(schema, table).SerializeToString())


class ProfileAdmin:
    """The app profile calls of BigtableInstanceAdmin; requests and responses as bytes."""

    def __init__(self, profiles: Profiles) -> None:
        """Keep them in `profiles`."""
        self._profiles = profiles

    async def create(self, body: bytes, context: Any) -> bytes:
        """CreateAppProfile."""
        request = instance_types.CreateAppProfileRequest.pb().FromString(body)
        try:
            created = self._profiles.create(request.parent, request.app_profile_id, request.app_profile)
        except ProfileError as error:
            raise CallError(grpc.StatusCode.ALREADY_EXISTS, str(error)) from None
        return bytes(created.SerializeToString())

    async def get(self, body: bytes, context: Any) -> bytes:
        """GetAppProfile."""
        name = instance_types.GetAppProfileRequest.pb().FromString(body).name
        return bytes(self._named(name).SerializeToString())

    async def list(self, body: bytes, context: Any) -> bytes:
        """ListAppProfiles."""
        parent = instance_types.ListAppProfilesRequest.pb().FromString(body).parent
        profiles = self._profiles.listed(parent)
        answer = instance_types.ListAppProfilesResponse.pb()(app_profiles=profiles)
        return bytes(answer.SerializeToString())

    async def update(self, body: bytes, context: Any) -> bytes:
        """UpdateAppProfile. Returns an operation that is done."""
        request = instance_types.UpdateAppProfileRequest.pb().FromString(body)
        self._named(request.app_profile.name)
        updated = self._profiles.update(request.app_profile, list(request.update_mask.paths))
        return _operation(updated, instance_types.UpdateAppProfileMetadata.pb()())

    async def delete(self, body: bytes, context: Any) -> bytes:
        """DeleteAppProfile."""
        name = instance_types.DeleteAppProfileRequest.pb().FromString(body).name
        self._named(name)
        self._profiles.delete(name)
        return bytes(empty_pb2.Empty().SerializeToString())

    def _named(self, name: str) -> Any:
        try:
            return self._profiles.named(name)
        except ProfileError as error:
            raise CallError(grpc.StatusCode.NOT_FOUND, str(error)) from None


def _retention_us(table: Any) -> int:
    retention_us = int(table.change_stream_config.retention_period.ToMicroseconds())
    if not DAY_US <= retention_us <= 7 * DAY_US:
        raise CallError(
            grpc.StatusCode.INVALID_ARGUMENT, "change_stream_config.retention_period must be 1 to 7 days"
        )
    return retention_us


def _shown(schema: Any, table: Table) -> Any:
    """Add to the backend's answer about a table the fields that only the front knows."""
    for name in schema.column_families:
        if name in table.families:
            schema.column_families[name].CopyFrom(table.families[name])
    if table.stream is not None:
        schema.change_stream_config.retention_period.FromMicroseconds(table.stream.retention_us)
    return schema


def _hide_rules(families: Any) -> None:
    for family in families.values():
        family.ClearField("gc_rule")


def _done(table: Any) -> bytes:
    return _operation(table, _UpdateMetadata(name=table.name))


def _operation(response: Any, metadata: Any) -> bytes:
    # The front is done when it answers, so no client has to poll.
    operation = operations_pb2.Operation(name=f"operations/{response.name}", done=True)
    operation.response.CopyFrom(_any(response))
    operation.metadata.CopyFrom(_any(metadata))
    return operation.SerializeToString()


def _any(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
