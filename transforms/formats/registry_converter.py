"""The base of the converters whose schemas are in a registry: keys and values in Confluent's wire format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from penstock.extras import require_extra
from penstock.transforms.formats.converter import Encode, Opened, Part
from penstock.transforms.formats.debezium_types import Schema
from penstock.transforms.formats.schema_registry import SchemaRegistry, SchemaType, schema_id


class RegistryConverter:
    """Asks the registry once for each schema, and keeps a writer or a reader for it.

    Subclasses name their extra of the package with the module that it brings, and the type of their schemas.

    Raises:
        UsageError: an extra is missing.
    """

    as_json = False
    embeds_schema = False

    extra: ClassVar[tuple[str, str]]
    schema_type: ClassVar[SchemaType]

    def __init__(self, registry: SchemaRegistry) -> None:
        require_extra(*self.extra)
        require_extra("schema-registry", "confluent_kafka.schema_registry")
        self._registry = registry
        self._readers: dict[int, Callable[[bytes], Opened]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}  # readers do not pickle; the worker makes them again

    def check(self) -> None:
        """Check before the pipeline starts that the registry answers; see `SchemaRegistry.check`."""
        self._registry.check()

    def encoder(self, topic: str, part: Part, schema: Schema) -> Encode:
        """Return the function that encodes payloads of a schema.

        Raises:
            ValueError: the format cannot express the schema.
        """
        return self._writer(topic, part, schema)

    def open(self, data: bytes) -> Opened:
        """Return schema and payload of a record.

        Raises:
            ValueError: not in Confluent's wire format, or not data of its schema.
            SchemaRegistryError: the registry does not have the schema, or does not answer.
        """
        id_ = schema_id(data)
        reader = self._readers.get(id_)
        if reader is None:
            reader = self._readers[id_] = self._reader(self._registry.schema(id_, self.schema_type))
        return reader(data)

    def _writer(self, topic: str, part: Part, schema: Schema) -> Encode:
        raise NotImplementedError

    def _reader(self, text: str) -> Callable[[bytes], Opened]:
        raise NotImplementedError
