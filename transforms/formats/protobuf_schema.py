"""Schemas of Kafka Connect as Protobuf file descriptors, and back. Needs the extras `protobuf` and `schema-registry`.

| Connect | Protobuf (proto3) |
|---|---|
| struct `a.b.C`, the record | message `C` in package `a.b` |
| an inner struct | a message inside of it |
| optional | `optional`, so that null and the default value differ |
| int8, int16, int32, int64 | int32, int64 |
| Decimal | `confluent.type.Decimal` |
| array | a message with `repeated elements`, each of them a message with an `optional value` |
| name, version and parameters of a type | `(confluent.field_meta)` or `(confluent.message_meta)` |

`repeated` alone can neither be null nor hold nulls; it is used for arrays whose schema allows neither.

A field never changes its number. A new column, or a column with a new type, gets a number that no registered version of
the subject has. So a reader with another version never takes one column for another.

Source: confluentinc/schema-registry, `ProtobufData` and `meta.proto`; Protocol Buffers documentation, "Field Presence"
and "Updating A Message Type".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from itertools import count
from typing import Any

import msgspec
from confluent_kafka.schema_registry.confluent import meta_pb2 as untyped_meta_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from penstock.transforms.formats.debezium_types import Schema

_F: Any = FieldDescriptorProto
meta_pb2: Any = untyped_meta_pb2  # generated code without annotations
_TYPES = {
    "boolean": _F.TYPE_BOOL,
    "int8": _F.TYPE_INT32,
    "int16": _F.TYPE_INT32,
    "int32": _F.TYPE_INT32,
    "int64": _F.TYPE_INT64,
    "float": _F.TYPE_FLOAT,
    "double": _F.TYPE_DOUBLE,
    "string": _F.TYPE_STRING,
    "bytes": _F.TYPE_BYTES,
}
_KINDS = {
    _F.TYPE_BOOL: "boolean",
    _F.TYPE_INT32: "int32",
    _F.TYPE_INT64: "int64",
    _F.TYPE_FLOAT: "float",
    _F.TYPE_DOUBLE: "double",
    _F.TYPE_STRING: "string",
    _F.TYPE_BYTES: "bytes",
}
DECIMAL = "org.apache.kafka.connect.data.Decimal"
DECIMAL_MESSAGE = ".confluent.type.Decimal"
_RESERVED_NUMBERS = range(19_000, 20_000)

Numbers = dict[str, dict[tuple[Any, ...], int]]
"""For each message the numbers of its fields, by name and type."""


def file_descriptor(connect: Schema, versions: Iterable[FileDescriptorProto] = ()) -> FileDescriptorProto:
    """Return the file of a struct. Fields have the numbers that they have in `versions`, the oldest first.

    Raises:
        ValueError: two fields of a message have one name in Protobuf.
    """
    full = ".".join(map(protobuf_name, connect["name"].split(".")))
    package, _, name = full.rpartition(".")
    file: Any = FileDescriptorProto(name=f"{full}.proto", package=package, syntax="proto3")
    numbers: Numbers = {}
    for version in versions:
        for message in version.message_type:
            _note_numbers(f".{version.package}.{message.name}", message, numbers)
    message = file.message_type.add(name=name)
    _File(numbers).fill(message, f".{package}.{name}" if package else f".{name}", connect)
    text = file.SerializeToString()
    file.dependency.append("confluent/meta.proto")
    if b"confluent.type.Decimal" in text:
        file.dependency.append("confluent/type/decimal.proto")
    return file


def connect_schema(file: FileDescriptorProto, message: DescriptorProto) -> Schema:
    """Return the Connect schema of a message of `file_descriptor`."""
    known: dict[str, DescriptorProto] = {}
    for each in file.message_type:
        _note_messages(f".{file.package}.{each.name}" if file.package else f".{each.name}", each, known)
    return {"optional": False, **_struct(message, known)}


def as_text(file: FileDescriptorProto) -> str:
    """Return the form in which registries exchange a file: base64 of its bytes."""
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()


def from_text(text: str) -> FileDescriptorProto:
    """Return the file of `as_text`.

    Raises:
        ValueError: another form.
    """
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except Exception:  # protobuf's DecodeError is no ValueError
        raise ValueError("the schema is not the base64 of a Protobuf file descriptor") from None


def protobuf_name(name: str) -> str:
    """Return a name that Protobuf allows."""
    return re.sub(r"^([0-9_])", r"x\1", re.sub(r"[^A-Za-z0-9_]", "_", name)) or "x"


def is_plain_array(connect: Schema) -> bool:
    """Return whether `repeated` alone can hold an array: it is never null, and no element is."""
    return not connect.get("optional") and not connect["items"].get("optional")


class _File:
    """Fills the messages of one file."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._messages: dict[str, Schema] = {}

    def fill(self, message: Any, path: str, connect: Schema, outer: Any = None, inner_path: str = "") -> None:
        """Add the fields of a struct. Inner messages go into the outermost message, one for each name."""
        outer, inner_path = outer or message, inner_path or path
        params = _meta_params(connect, {"type"})
        if params:
            message.options.Extensions[meta_pb2.message_meta].params.update(params)
        names = [protobuf_name(field["field"]) for field in connect["fields"]]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"fields of {path[1:]} have the same name in Protobuf, {', '.join(twice)}: rename their columns"
            )
        used = dict(self._numbers.get(path, {}))
        for name, schema in zip(names, connect["fields"], strict=True):
            self._add(message, name, schema, outer, inner_path)
            field = message.field[-1]
            signature = _signature(field)
            # A field keeps the number that the versions before gave to its name and type. With another type it is
            # another field: readers of the old number would misread its values.
            if signature not in used:
                used[signature] = _next_number(used.values())
            field.number = used[signature]

    def _add(self, message: Any, name: str, schema: Schema, outer: Any, inner_path: str) -> None:
        # Give each field an explicit JSON name: otherwise a_b and aB would both have aB, which Protobuf refuses.
        field = message.field.add(name=name, json_name=name, label=_F.LABEL_OPTIONAL)
        params = _meta_params(schema, {"type", "optional", "default"})
        if name != schema["field"]:
            params["penstock.name"] = schema["field"]
        kind = schema["type"]
        if kind == "array":
            self._array(message, field, schema, outer, inner_path)
            params["connect.type"] = "array"
        elif kind == "struct":
            field.type, field.type_name = (
                _F.TYPE_MESSAGE,
                self._inner(message, name, schema, outer, inner_path),
            )
            params = {
                key: params[key] for key in params if key == "penstock.name"
            }  # the message has the others
        elif schema.get("name") == DECIMAL:
            field.type, field.type_name = _F.TYPE_MESSAGE, DECIMAL_MESSAGE
        else:
            field.type = _TYPES[kind]
            if kind in ("int8", "int16"):
                params["connect.type"] = kind
            if schema.get("optional"):
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{name}")
        if field.type == _F.TYPE_MESSAGE and not schema.get("optional"):
            params["connect.required"] = "true"
        if params:
            field.options.Extensions[meta_pb2.field_meta].params.update(params)

    def _array(self, message: Any, field: Any, schema: Schema, outer: Any, inner_path: str) -> None:
        if is_plain_array(schema):
            inner: Any = DescriptorProto()
            self._add(inner, "x", {**schema["items"], "field": "x"}, outer, inner_path)
            field.label, field.type = _F.LABEL_REPEATED, inner.field[0].type
            if inner.field[0].type_name:
                field.type_name = inner.field[0].type_name
            return
        # A message, because `repeated` can neither be null nor hold nulls.
        element = {
            "type": "struct",
            "fields": [{**schema["items"], "field": "value"}],
            "optional": False,
        }
        items = {"type": "array", "items": element, "optional": False, "field": "elements"}
        array = {"type": "struct", "fields": [items], "field": field.name}
        field.type = _F.TYPE_MESSAGE
        field.type_name = self._inner(message, f"{field.name}_array", array, outer, inner_path)

    def _inner(self, message: Any, name: str, schema: Schema, outer: Any, inner_path: str) -> str:
        """Return the name of the message of an inner struct; adds it if it is not there."""
        base = protobuf_name(schema.get("name", "").rpartition(".")[2] or f"{message.name}_{name}")
        content = {key: value for key, value in schema.items() if key not in ("optional", "field")}
        own = base
        for number in count(2):  # two columns may lead to one name
            if self._messages.setdefault(own, content) == content:
                break
            own = f"{base}_{number}"
        path = f"{inner_path}.{own}"
        if all(each.name != own for each in outer.nested_type):
            inner = outer.nested_type.add(name=own)
            self.fill(inner, path, schema, outer, inner_path)
        return path


def _meta_params(connect: Schema, without: set[str]) -> dict[str, str]:
    params = {f"connect.{key}": str(connect[key]) for key in ("name", "version") if key in connect}
    if connect.get("parameters"):
        params["connect.parameters"] = msgspec.json.encode(connect["parameters"]).decode()
    if "default" in connect and "default" not in without:
        params["connect.default"] = str(connect["default"])
    return params


def _signature(field: Any) -> tuple[Any, ...]:
    return field.name, field.type, field.type_name.rpartition(".")[2], field.label


def _next_number(used: Iterable[int]) -> int:
    # Protobuf keeps 19,000 to 19,999 for itself.
    number = max(used, default=0) + 1
    return _RESERVED_NUMBERS.stop if number in _RESERVED_NUMBERS else number


def _note_numbers(path: str, message: DescriptorProto, numbers: Numbers) -> None:
    known = numbers.setdefault(path, {})
    for field in message.field:
        known.setdefault(_signature(field), field.number)
    for inner in message.nested_type:
        _note_numbers(f"{path}.{inner.name}", inner, numbers)


def _note_messages(path: str, message: DescriptorProto, known: dict[str, DescriptorProto]) -> None:
    known[path] = message
    for inner in message.nested_type:
        _note_messages(f"{path}.{inner.name}", inner, known)


def _struct(message: DescriptorProto, known: dict[str, DescriptorProto]) -> Schema:
    schema: Schema = {"type": "struct", "fields": [_field(field, known) for field in message.field]}
    return schema | _connect_params(message.options.Extensions[meta_pb2.message_meta].params)


def _field(field: Any, known: dict[str, DescriptorProto]) -> Schema:
    params = field.options.Extensions[meta_pb2.field_meta].params
    name = params.get("penstock.name", field.name)
    optional = bool(field.proto3_optional)
    if field.type == _F.TYPE_MESSAGE:
        optional = "connect.required" not in params and field.label != _F.LABEL_REPEATED
    return {**_field_type(field, params, known), "optional": optional, "field": name}


def _field_type(field: Any, params: Any, known: dict[str, DescriptorProto]) -> Schema:
    is_array = "connect.type" in params and params["connect.type"] == "array"
    if field.label == _F.LABEL_REPEATED:
        element: Any = FieldDescriptorProto()
        element.CopyFrom(field)
        element.label = _F.LABEL_OPTIONAL
        return {"type": "array", "items": {**_field_type(element, {}, known), "optional": False}}
    if field.type == _F.TYPE_MESSAGE and is_array:
        (elements,) = known[field.type_name].field
        (value,) = known[elements.type_name].field
        items = _field(value, known)
        del items["field"]
        return {"type": "array", "items": items}
    if field.type_name == DECIMAL_MESSAGE:
        return {"type": "bytes", **_connect_params(params)}
    if field.type == _F.TYPE_MESSAGE:
        return _struct(known[field.type_name], known)
    kind = params["connect.type"] if "connect.type" in params else _KINDS[field.type]
    return {"type": kind, **_connect_params(params)}


def _connect_params(params: Any) -> Schema:
    found: Schema = {}
    if "connect.name" in params:
        found["name"] = params["connect.name"]
    if "connect.version" in params:
        found["version"] = int(params["connect.version"])
    if "connect.parameters" in params:
        found["parameters"] = msgspec.json.decode(params["connect.parameters"])
    return found
