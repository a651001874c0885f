"""Schemas of Kafka Connect as Avro schemas, and back, by the rules of Confluent's AvroConverter. Pure.

| Connect | Avro |
|---|---|
| struct `a.b.C` | record `C` in namespace `a.b`, with `connect.name` and `connect.version` |
| optional | union of null and the type; the default of the field is null, or the default of the schema |
| int8, int16 | int with `connect.type` |
| Decimal | bytes with `logicalType` decimal, precision (64 if the column has none) and scale |
| Connect's Date, Time, Timestamp | int or long with a `logicalType` |
| any other name, such as `io.debezium.time.MicroTimestamp` | the plain type with `connect.name` and `connect.version` |

Avro names consist of letters, digits and underscores, and do not start with a digit. Any other character becomes an
underscore; the field then has the original name in `penstock.name`. A struct without a name is named after its field.

Source: confluentinc/schema-registry, `AvroData.fromConnectSchema`; Avro specification 1.12, "Names".
"""

from __future__ import annotations

import re
from typing import Any

from penstock.transforms.formats.debezium_types import Schema

AvroSchema = Any  # a text, a list or a dict, as in Avro's JSON

ORIGINAL_NAME = "penstock.name"
"""Property of a field whose column has a name that Avro does not allow."""

_PLAIN = {
    "boolean": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}
PRIMITIVE = frozenset({"null", *_PLAIN.values()})
"""Types that a text names without a definition."""
# Types that both sides call the same are not listed.
_CONNECT = {"int": "int32", "long": "int64"}
_DATA = "org.apache.kafka.connect.data."
_LOGICAL = {f"{_DATA}Date": "date", f"{_DATA}Time": "time-millis", f"{_DATA}Timestamp": "timestamp-millis"}
_DECIMAL = f"{_DATA}Decimal"
# Without a precision Connect's decimals have any number of digits; Avro's specification requires one.
_DEFAULT_PRECISION = 64  # of AvroData, for decimals whose column has no precision


def avro_schema(connect: Schema) -> AvroSchema:
    """Return the Avro schema of a Connect schema.

    Raises:
        ValueError: two fields of a record have one name in Avro.
    """
    return _type(connect, "", "Record", {})


def connect_schema(avro: AvroSchema) -> Schema:
    """Return the Connect schema of an Avro schema, of this module or of Confluent's converter."""
    return _connect(avro, "", {})


def avro_name(name: str) -> str:
    """Return a name that Avro allows."""
    # Avro's rule for a first character is stricter than for the others, so a leading digit gets an underscore
    # before it.
    return re.sub(r"^[0-9]", lambda digit: f"_{digit[0]}", re.sub(r"[^A-Za-z0-9_]", "_", name)) or "_"


def full_name(avro: AvroSchema) -> str:
    """Return the full name of a record."""
    namespace = avro.get("namespace", "")
    return f"{namespace}.{avro['name']}" if namespace else str(avro["name"])


def without_logical_types(avro: AvroSchema) -> AvroSchema:
    """Return the schema for values that are already bytes and integers."""
    if isinstance(avro, list):
        return [without_logical_types(each) for each in avro]
    if isinstance(avro, dict):
        return {
            name: without_logical_types(each) if name in ("type", "items", "values", "fields") else each
            for name, each in avro.items()
            if name != "logicalType"
        }
    return avro


def _type(connect: Schema, namespace: str, default_name: str, known: dict[str, Schema]) -> AvroSchema:
    # `field` belongs to the struct around it, and `optional` becomes a union.
    plain = {name: value for name, value in connect.items() if name not in ("optional", "field")}
    shown = _required(plain, namespace, default_name, known)
    if not connect.get("optional"):
        return shown
    # The default of a field must have the first type of its union.
    return [shown, "null"] if "default" in connect else ["null", shown]


def _required(connect: Schema, namespace: str, default_name: str, known: dict[str, Schema]) -> AvroSchema:
    kind = connect["type"]
    if kind == "struct":
        return _record(connect, namespace, default_name, known)
    if kind == "array":
        # Arrays and plain types can have properties, which structs handle separately.
        base: dict[str, Any] = {
            "type": "array",
            "items": _type(connect["items"], namespace, default_name, known),
        }
    else:
        base = {"type": _PLAIN[kind]}
    parameters = connect.get("parameters", {})
    if connect.get("name") == _DECIMAL:
        base["scale"] = int(parameters["scale"])
        base["precision"] = int(parameters.get("connect.decimal.precision", _DEFAULT_PRECISION))
    base |= _properties(connect)
    # A scale above the precision is legal in PostgreSQL and not in Avro: the properties still describe it.
    if connect.get("name") == _DECIMAL and base["scale"] <= base["precision"]:  # as the specification demands
        base["logicalType"] = "decimal"
    elif connect.get("name") in _LOGICAL:
        base["logicalType"] = _LOGICAL[connect["name"]]
    # A type without properties is written as its bare name.
    return base["type"] if len(base) == 1 else base


def _record(connect: Schema, namespace: str, default_name: str, known: dict[str, Schema]) -> AvroSchema:
    full = connect.get("name") or (f"{namespace}.{default_name}" if namespace else default_name)
    path = [avro_name(part) for part in full.split(".")]
    own_namespace, name = ".".join(path[:-1]), path[-1]
    full = ".".join(path)
    # Avro names a record once and refers to it by name afterwards.
    if full in known:
        if known[full] != connect:
            raise ValueError(f"two different structs have the name {full}, which Avro does not allow")
        return name if own_namespace == namespace else full
    known[full] = connect
    record: dict[str, Any] = {"type": "record", "name": name}
    # A namespace is inherited, so it is written where it changes only.
    if own_namespace != namespace:
        record["namespace"] = own_namespace
    record["fields"] = [_field(field, own_namespace, name, known) for field in connect["fields"]]
    names = [field["name"] for field in record["fields"]]
    if len(set(names)) < len(names):
        # Two columns may differ only in characters that Avro does not allow.
        twice = sorted({each for each in names if names.count(each) > 1})
        raise ValueError(
            f"fields of {full} have the same name in Avro, {', '.join(twice)}: rename their columns"
        )
    return record | _properties(connect)


def _field(connect: Schema, namespace: str, record: str, known: dict[str, Schema]) -> dict[str, Any]:
    original = connect["field"]
    name = avro_name(original)
    field = {"name": name, "type": _type(connect, namespace, f"{record}_{name}", known)}
    # An optional field without a default has the default null.
    if "default" in connect or connect.get("optional"):
        field["default"] = connect.get("default")
    return field if name == original else {**field, ORIGINAL_NAME: original}


def _properties(connect: Schema) -> dict[str, Any]:
    found = {}
    if "version" in connect:
        found["connect.version"] = connect["version"]
    if connect.get("parameters"):
        found["connect.parameters"] = connect["parameters"]
    if "default" in connect:
        found["connect.default"] = connect["default"]
    if "name" in connect:
        found["connect.name"] = connect["name"]
    # Avro has no 8-bit and 16-bit integers. The property lets a consumer restore them.
    if connect["type"] in ("int8", "int16"):
        found["connect.type"] = connect["type"]
    return found


def _connect(avro: AvroSchema, namespace: str, known: dict[str, Schema]) -> Schema:
    if isinstance(avro, list):
        # Kafka Connect's schemas have no unions, except the one that says "optional".
        inner = [each for each in avro if each != "null"]
        if len(inner) != 1:
            raise ValueError("a union of several types has no schema in Kafka Connect here")
        return {**_connect(inner[0], namespace, known), "optional": len(inner) < len(avro)}
    if isinstance(avro, str):
        # Names within a namespace may be short.
        found = known.get(avro) or known.get(f"{namespace}.{avro}")
        return found or {"type": _CONNECT.get(avro, avro), "optional": False}
    kind = avro["type"]
    if kind == "record":
        return _struct(avro, namespace, known)
    if kind == "array":
        schema: Schema = {"type": "array", "items": _connect(avro["items"], namespace, known)}
    elif isinstance(kind, str):
        schema = {"type": avro.get("connect.type") or _CONNECT.get(kind, kind)}
    else:  # {"type": {"type": …}}
        return _connect(kind, namespace, known)
    schema["optional"] = False
    if avro.get("logicalType") == "decimal" and "connect.name" not in avro:  # not made by Kafka Connect
        precision, scale = str(avro["precision"]), str(avro.get("scale", 0))
        return {
            **schema,
            "name": _DECIMAL,
            "parameters": {"scale": scale, "connect.decimal.precision": precision},
        }
    return schema | _connect_properties(avro)


def _struct(avro: dict[str, Any], namespace: str, known: dict[str, Schema]) -> Schema:
    own_namespace = avro.get("namespace", namespace)
    schema: Schema = {"type": "struct", "optional": False, **_connect_properties(avro)}
    # Entered before its fields are read, because a field may refer to the record around it.
    known[f"{own_namespace}.{avro['name']}" if own_namespace else avro["name"]] = schema
    schema["fields"] = [
        {
            **_connect(field["type"], own_namespace, known),
            "field": field.get(ORIGINAL_NAME, field["name"]),
        }
        for field in avro["fields"]
    ]
    return schema


def _connect_properties(avro: dict[str, Any]) -> Schema:
    names = {f"connect.{name}": name for name in ("name", "version", "parameters", "default")}
    return {connect: avro[name] for name, connect in names.items() if name in avro}
