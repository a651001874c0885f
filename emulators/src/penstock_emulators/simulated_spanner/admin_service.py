"""The admin services: instances, databases, DDL; and the operations that they return, all of them done.

Source: google/spanner/admin/database/v1/spanner_database_admin.proto,
google/spanner/admin/instance/v1/spanner_instance_admin.proto, google/longrunning/operations.proto.
"""

from __future__ import annotations

import re
from typing import Any

from google.cloud.spanner_admin_database_v1.types import common as database_common
from google.cloud.spanner_admin_database_v1.types import spanner_database_admin as database_types
from google.cloud.spanner_admin_instance_v1.types import spanner_instance_admin as instance_types
from google.longrunning import operations_pb2
from google.protobuf import descriptor_pb2, empty_pb2

from penstock_emulators.simulated_spanner.column_type import GOOGLESQL, POSTGRESQL
from penstock_emulators.simulated_spanner.database import Database
from penstock_emulators.simulated_spanner.errors import ServiceError, invalid, not_found
from penstock_emulators.simulated_spanner.service import Service

_CREATE_DATABASE = re.compile(r"\s*CREATE\s+DATABASE\s+[`\"]?([^`\"\s;]+)[`\"]?\s*;?\s*", re.IGNORECASE)
_Dialect = database_common.DatabaseDialect


class Operations:
    """google.longrunning.Operations: the service finishes the work before it returns the operation."""

    def __init__(self) -> None:
        self._done: dict[str, Any] = {}

    def done(self, name: str, response: Any, metadata: Any) -> Any:
        """Return a finished operation and remember it."""
        operation = operations_pb2.Operation(name=name, done=True)
        operation.response.Pack(response)
        operation.metadata.Pack(metadata)
        self._done[name] = operation
        return operation

    async def get_operation(self, request: Any) -> Any:
        """Return an operation."""
        if request.name not in self._done:
            raise not_found(f"Operation not found: {request.name}")
        return self._done[request.name]


class InstanceAdmin:
    """google.spanner.admin.instance.v1.InstanceAdmin."""

    def __init__(self, service: Service, operations: Operations) -> None:
        self._service = service
        self._operations = operations

    async def create_instance(self, request: Any) -> Any:
        """Make an instance."""
        name = f"{request.parent}/instances/{request.instance_id}"
        if name in self._service.instances:
            raise ServiceError("ALREADY_EXISTS", f"Instance already exists: {name}")
        self._service.instances[name] = request.instance.config
        number = self._service.next_number()
        metadata = instance_types.CreateInstanceMetadata.pb()(instance=self._message(name))
        return self._operations.done(f"{name}/operations/{number}", self._message(name), metadata)

    async def get_instance(self, request: Any) -> Any:
        """Return an instance."""
        if request.name not in self._service.instances:
            raise not_found(f"Instance not found: {request.name}")
        return self._message(request.name)

    async def list_instances(self, request: Any) -> Any:
        """Return the instances of a project."""
        names = [each for each in self._service.instances if each.startswith(f"{request.parent}/")]
        return instance_types.ListInstancesResponse.pb()(instances=[self._message(each) for each in names])

    async def delete_instance(self, request: Any) -> Any:
        """Forget an instance with its databases."""
        self._service.instances.pop(request.name, None)
        for name in list(self._service.databases):
            if name.startswith(f"{request.name}/"):
                del self._service.databases[name]
        return empty_pb2.Empty()

    async def get_instance_config(self, request: Any) -> Any:
        """Return the configuration of that name: there is any."""
        return instance_types.InstanceConfig.pb()(name=request.name, display_name="simulated")

    async def list_instance_configs(self, request: Any) -> Any:
        """Return one configuration."""
        name = f"{request.parent}/instanceConfigs/emulator-config"
        config = instance_types.InstanceConfig.pb()(name=name, display_name="simulated")
        return instance_types.ListInstanceConfigsResponse.pb()(instance_configs=[config])

    def _message(self, name: str) -> Any:
        return instance_types.Instance.pb()(
            name=name,
            config=self._service.instances[name],
            display_name=name.rpartition("/")[2],
            node_count=1,
            processing_units=1000,
            state=instance_types.Instance.State.READY,
        )


class DatabaseAdmin:
    """google.spanner.admin.database.v1.DatabaseAdmin."""

    def __init__(self, service: Service, operations: Operations) -> None:
        self._service = service
        self._operations = operations

    async def create_database(self, request: Any) -> Any:
        """Make a database with its first statements."""
        found = _CREATE_DATABASE.fullmatch(request.create_statement)
        if found is None:
            raise invalid("Invalid CREATE DATABASE statement.")
        is_postgresql = request.database_dialect == _Dialect.POSTGRESQL
        if is_postgresql and request.extra_statements:
            raise invalid(
                "DDL statements other than <CREATE DATABASE> are not allowed in database creation request for "
                "PostgreSQL-enabled databases."
            )
        name = f"{request.parent}/databases/{found[1]}"
        database = self._service.create_database(name, POSTGRESQL if is_postgresql else GOOGLESQL)
        try:
            self._apply(database, request)
        except ServiceError:
            del self._service.databases[name]
            raise
        metadata = database_types.CreateDatabaseMetadata.pb()(database=name)
        number = self._service.next_number()
        return self._operations.done(f"{name}/operations/{number}", self._message(name), metadata)

    async def update_database_ddl(self, request: Any) -> Any:
        """Apply DDL statements."""
        database = self._service.database(request.database)
        self._apply(database, request)
        self._service.wake_all()
        name = f"{request.database}/operations/{request.operation_id or self._service.next_number()}"
        metadata = database_types.UpdateDatabaseDdlMetadata.pb()(
            database=request.database, statements=request.statements
        )
        return self._operations.done(name, empty_pb2.Empty(), metadata)

    async def get_database_ddl(self, request: Any) -> Any:
        """Return the statements that made the schema."""
        statements = self._service.database(request.database).schema.statements
        return database_types.GetDatabaseDdlResponse.pb()(statements=statements)

    async def get_database(self, request: Any) -> Any:
        """Return a database."""
        self._service.database(request.name)
        return self._message(request.name)

    async def list_databases(self, request: Any) -> Any:
        """Return the databases of an instance."""
        names = [each for each in self._service.databases if each.startswith(f"{request.parent}/databases/")]
        return database_types.ListDatabasesResponse.pb()(databases=[self._message(each) for each in names])

    async def drop_database(self, request: Any) -> Any:
        """Forget a database with its sessions."""
        self._service.databases.pop(request.database, None)
        for name in list(self._service.sessions):
            if name.startswith(f"{request.database}/sessions/"):
                del self._service.sessions[name]
        return empty_pb2.Empty()

    def _apply(self, database: Database, request: Any) -> None:
        if request.proto_descriptors:
            files = descriptor_pb2.FileDescriptorSet.FromString(request.proto_descriptors)
            for each in files.file:
                _take_names(database, each.package, each.message_type, each.enum_type)
        statements = getattr(request, "extra_statements", None)
        database.apply_ddl(
            list(request.statements if statements is None else statements), self._service.clock.now()
        )

    def _message(self, name: str) -> Any:
        dialect = self._service.databases[name].schema.dialect
        return database_types.Database.pb()(
            name=name,
            state=database_types.Database.State.READY,
            database_dialect=_Dialect.POSTGRESQL if dialect == POSTGRESQL else _Dialect.GOOGLE_STANDARD_SQL,
        )


def _take_names(database: Database, scope: str, messages: Any, enums: Any) -> None:
    prefix = f"{scope}." if scope else ""
    database.schema.proto_enums |= {prefix + each.name for each in enums}
    for each in messages:
        database.schema.proto_messages.add(prefix + each.name)
        _take_names(database, prefix + each.name, each.nested_type, each.enum_type)
