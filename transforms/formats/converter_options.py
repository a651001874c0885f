"""The choice of a converter by names and texts, as pipelines offer it. Pure until the converter is used."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Literal

from penstock.errors import UsageError
from penstock.secrets import is_reference, read_secret
from penstock.transforms.formats.capture import check_choice
from penstock.transforms.formats.converter import Converter
from penstock.transforms.formats.schema_registry import SchemaRegistry, SubjectNameStrategy

_HOMES = {"avro": "avro:AvroConverter", "protobuf": "protobuf:ProtobufConverter"}


def make_converter(
    *,
    converter: Literal["json", "avro", "protobuf"] = "json",
    registry_url: str | None = None,
    registry_login: str | None = None,
    registry_auto_register: bool = True,
    registry_subjects: SubjectNameStrategy = "TopicName",
) -> Converter | None:
    """Return a converter with its schema registry; None: JSON without a registry.

    Args:
        converter: What keys and values are written in: json; or avro or protobuf, with schemas in a registry.
        registry_url: Address of the schema registry, for avro and protobuf; several with commas between them.
        registry_login: User and password of the schema registry, ``user:password``, as a reference such as ${env:NAME}.
        registry_auto_register: Whether to register schemas that the registry does not have.
        registry_subjects: Names of the subjects, as in Confluent's serializers.

    Raises:
        UsageError: options that exclude each other, or an extra that is not installed.
    """
    check_choice("converter", converter, ("json", "avro", "protobuf"))
    if converter == "json":
        if registry_url or registry_login:
            raise UsageError("registry options have no effect with converter json: use avro or protobuf")
        return None
    if not registry_url:
        raise UsageError(f"converter {converter} needs registry_url, the address of the schema registry")
    # Options of a pipeline are shown in job files, logs and graphs.
    if registry_login and not is_reference(registry_login):
        raise UsageError("registry_login is given as a reference, such as ${env:NAME}, never as plain text")
    registry = SchemaRegistry(
        registry_url,
        auto_register=registry_auto_register,
        subject_name_strategy=registry_subjects,
        settings=partial(_login, registry_login) if registry_login else None,
    )
    # Imported by name: each of the two needs packages of an extra, which this module and its importers do not need.
    module, _, name = _HOMES[converter].partition(":")
    made: Converter = getattr(import_module(f"penstock.transforms.formats.{module}"), name)(registry)
    return made


def _login(reference: str) -> dict[str, str]:
    # Read where the registry is used, so the pipeline contains the reference only.
    return {"basic.auth.user.info": read_secret(reference)}
