"""Schema registries with Confluent's API: subjects, ids and errors. Needs the extra `schema-registry`.

    registry = SchemaRegistry("http://registry:8081", auto_register=False)
    DebeziumFormat("shop", converter=AvroConverter(registry))

The registry is asked once for each schema and subject in each worker process, never for a record. A value can be
pickled: the client connects when the first record is encoded.

Source: Confluent documentation, "Schema Registry API Reference", "Wire Format" and "Subject Name Strategy".
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from penstock.errors import ServiceError, UsageError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

SubjectNameStrategy = Literal["TopicName", "RecordName", "TopicRecordName"]
SchemaType = Literal["AVRO", "PROTOBUF"]
Settings = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
Result = TypeVar("Result")

_MAGIC = b"\x00"


class SchemaRegistryError(ServiceError):
    """The registry did not answer, or answered with an error that has nothing to do with the schema."""


class SchemaRefusedError(UsageError):
    """The registry does not accept a schema, or does not have it and `auto_register` is off."""


class SchemaRegistry:
    """The address of a schema registry, and the rules by which schemas are registered.

    - `url`: of the registry, or several with commas between them.
    - `auto_register`: register schemas that the registry does not have. False: only look up their ids.
    - `subject_name_strategy`: TopicName (``<topic>-key``, ``<topic>-value``), RecordName (the full name of the
      record) or TopicRecordName (``<topic>-<full name>``), as in Confluent's serializers.
    - `settings`: further settings of `confluent_kafka`'s SchemaRegistryClient, such as ``basic.auth.user.info``. A
      function is called in the worker, so that no secret becomes part of the pipeline.
    - `retry_seconds`: for how long a refused schema stays refused before the registry is asked again.

    Raises:
        UsageError: the strategy does not exist.
    """

    def __init__(
        self,
        url: str,
        *,
        auto_register: bool = True,
        subject_name_strategy: SubjectNameStrategy = "TopicName",
        settings: Settings | None = None,
        retry_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if subject_name_strategy not in get_args(SubjectNameStrategy):
            known = ", ".join(get_args(SubjectNameStrategy))
            raise UsageError(
                f"subject_name_strategy {subject_name_strategy!r} does not exist: use one of {known}"
            )
        self._url, self._settings = url, settings or {}
        self.auto_register, self._strategy = auto_register, subject_name_strategy
        self.retry_seconds, self.clock = retry_seconds, clock

    def __repr__(self) -> str:  # no settings: they hold secrets
        return f"SchemaRegistry({self._url!r})"

    def check(self) -> None:
        """Check before the pipeline starts that the registry answers and knows the login.

        Raises:
            UsageError: a secret of the settings cannot be read.
            SchemaRegistryError: the registry does not answer, or denies access.
        """
        self._ask("", _ask_for_subjects)

    def subject(self, topic: str, part: str, record_name: str) -> str:
        """Return the subject of the keys or the values (`part`) of a topic."""
        if self._strategy == "RecordName":
            return record_name
        return f"{topic}-{record_name}" if self._strategy == "TopicRecordName" else f"{topic}-{part}"

    def id_of(self, subject: str, text: str, schema_type: SchemaType) -> int:
        """Return the id of a schema under a subject; registers it first with `auto_register`.

        Raises:
            SchemaRefusedError: the registry does not accept it, or does not have it.
            SchemaRegistryError: the registry cannot be asked.
        """
        from confluent_kafka.schema_registry import Schema

        schema = Schema(text, schema_type)
        if self.auto_register:
            return self._ask(subject, lambda client: client.register_schema(subject, schema))
        return self._ask(subject, lambda client: client.lookup_schema(subject, schema).schema_id or 0)

    def schema(self, id_: int, schema_type: SchemaType) -> str:
        """Return the text of a schema; of Protobuf the base64 of its file descriptor.

        Raises:
            SchemaRegistryError: the registry does not have it, or cannot be asked.
        """
        fmt = "serialized" if schema_type == "PROTOBUF" else None
        found = self._ask("", lambda client: client.get_schema(id_, fmt=fmt))
        if (found.schema_type or "AVRO") != schema_type:
            raise ValueError(f"schema {id_} is of type {found.schema_type or 'AVRO'}, not {schema_type}")
        return found.schema_str or ""

    def versions(self, subject: str, schema_type: SchemaType) -> list[str]:
        """Return the texts of all versions of a subject, the oldest first; none if there is no such subject."""
        fmt = "serialized" if schema_type == "PROTOBUF" else None

        def texts(client: SchemaRegistryClient) -> list[str]:
            from confluent_kafka.schema_registry import SchemaRegistryError as ClientError

            try:
                numbers = client.get_versions(subject)
            except ClientError as error:
                if error.http_status_code == 404:
                    return []
                raise
            versions = [client.get_version(subject, number, fmt=fmt) for number in sorted(numbers)]
            return [version.schema.schema_str or "" for version in versions]

        return self._ask(subject, texts)

    def _ask(self, subject: str, question: Callable[[SchemaRegistryClient], Result]) -> Result:
        from confluent_kafka.schema_registry import SchemaRegistryError as ClientError

        settings = self._settings() if callable(self._settings) else self._settings
        client = _client(os.getpid(), (("url", self._url), *sorted(settings.items())))
        try:
            return question(client)
        except ClientError as error:
            raise self._error(subject, error.http_status_code, error.error_message) from None
        except Exception as error:  # the client lets the exceptions of its HTTP library through
            raise SchemaRegistryError(
                f"the schema registry {self._url} did not answer ({type(error).__name__}): check that it runs and that "
                "the workers reach it"
            ) from None

    def _error(self, subject: str, status: int, text: str) -> Exception:
        text = text[:500]
        # These two are about the schema, so the event is refused. A repeated bundle would get the same answer.
        if status in (409, 422):
            return SchemaRefusedError(
                f"the schema registry refuses a schema for subject {subject}: {text}. If the change of the table is "
                "intended, set another compatibility for the subject, or write to a new topic"
            )
        if status == 404 and subject and not self.auto_register:
            return SchemaRefusedError(
                f"the schema registry has no such schema for subject {subject}: register it, or set auto_register=True"
            )
        if status in (401, 403):
            return SchemaRegistryError(
                f"the schema registry {self._url} denies access (HTTP {status}): check its settings, such as "
                "basic.auth.user.info, and the rights on its subjects"
            )
        return SchemaRegistryError(f"the schema registry {self._url} answered HTTP {status}: {text}")


def _ask_for_subjects(client: SchemaRegistryClient) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryError as ClientError

    try:
        client.get_subjects()
    except ClientError as error:
        # The rights to single subjects do not include that to list them, and some registries have no list.
        if error.http_status_code not in (403, 404):
            raise


class Registration:
    """The prefix of records with one schema: magic byte and schema id. Asks the registry when it is first used."""

    def __init__(self, registry: SchemaRegistry, subject: str, schema_type: SchemaType) -> None:
        self._registry, self._subject, self._type = registry, subject, schema_type
        self._refusal: tuple[float, SchemaRefusedError] | None = None

    def prefix(self, text: Callable[[], str]) -> bytes:
        """Return the prefix for the schema that `text` gives.

        Raises:
            SchemaRefusedError: the registry does not accept it. Asked again after `retry_seconds` only, because each
                record of the table would ask.
            SchemaRegistryError: the registry cannot be asked.
        """
        now = self._registry.clock()
        if self._refusal is not None and now < self._refusal[0]:
            raise SchemaRefusedError(str(self._refusal[1]))
        try:
            id_ = self._registry.id_of(self._subject, text(), self._type)
        except SchemaRefusedError as error:
            self._refusal = (now + self._registry.retry_seconds, error)
            raise
        return _MAGIC + id_.to_bytes(4, "big")


def schema_id(data: bytes) -> int:
    """Return the id in the prefix of a record.

    Raises:
        ValueError: the record has no such prefix.
    """
    if len(data) < 5 or data[:1] != _MAGIC:
        raise ValueError(
            "the record does not start with the magic byte and the schema id of Confluent's wire format"
        )
    return int.from_bytes(data[1:5], "big")


@lru_cache(maxsize=64)
def _client(process: int, settings: tuple[tuple[str, Any], ...]) -> SchemaRegistryClient:
    # One client for each process: its connections must not cross a fork, and it keeps what it looked up.
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient.new_client(dict(settings))
