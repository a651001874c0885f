"""Maps errors of Kafka's client to the outcome of a delivery."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

from confluent_kafka import KafkaError

from penstock.errors import ServiceError
from penstock.io.staging.delivery import FencedError, TargetUnavailableError

# librdkafka writes to stderr unless it gets a logger.
CLIENT_LOG = logging.getLogger("penstock.io.kafka.librdkafka")


def _is_news(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    # The client tries to connect several times a second, and logs each failure. The error that the sink raises names
    # the broker and the reason once.
    if message.startswith("FAIL "):
        return False
    # The sink's consumers get the user's settings too, so a setting for producers is no mistake.
    return "will be ignored by this consumer instance" not in message


CLIENT_LOG.addFilter(_is_news)


class KafkaTargetError(ServiceError):
    """Kafka refuses the sink's requests. The message names the fix."""

    retryable = False


_ROW_CODES = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,  # a compacted topic refuses a record without a key
        KafkaError.INVALID_MSG,
    )
)
_FENCED_CODES = frozenset(
    (
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,  # what brokers before 2.5 say, and newer ones to a request of a partition
    )
)
_CONNECTION_CODES = frozenset((KafkaError._AUTHENTICATION, KafkaError._SSL))
_ADVICE = {
    KafkaError._SSL: "no TLS connection: check security.protocol and ssl.* in config=",
    KafkaError._AUTHENTICATION: "the broker did not accept the credentials: check sasl.* and ssl.* in config=",
    KafkaError.SASL_AUTHENTICATION_FAILED: "the broker did not accept the credentials: check sasl.* in config=",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the user may not write the topic: it needs WRITE, DESCRIBE and, to create "
    "topics, CREATE",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the user needs READ on groups with the prefix penstock-",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the user needs WRITE and DESCRIBE on transactional ids with the "
    "prefix penstock-",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the user needs the right IDEMPOTENT_WRITE on the cluster",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "a topic does not exist: create it, or pass create_topics=True",
    KafkaError._UNKNOWN_TOPIC: "a topic does not exist: create it, or pass create_topics=True",
    KafkaError.TOPIC_EXCEPTION: "the broker does not accept the name of a topic: pass another topic=",
    KafkaError.POLICY_VIOLATION: "a policy of the cluster forbids the topic: create it yourself",
    KafkaError.INVALID_REPLICATION_FACTOR: "the cluster has fewer brokers than replication_factor",
    KafkaError._INVALID_ARG: "a setting of config= is not accepted",
}


def is_permanent(error: KafkaError) -> bool:
    """Return whether brokers refuse the connection itself, and will refuse it again."""
    return error.code() in _CONNECTION_CODES


def is_row_error(error: KafkaError) -> bool:
    """Return whether a record was refused because of its content."""
    return error.code() in _ROW_CODES


_UNREACHABLE_CODES = frozenset((KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE))
_FAILED_CONNECTION = re.compile(r"(\S+?)/\w+: (?:.*?failed|Failed to resolve '\S+'): (.*?)(?: \(after .*)?")
"""How the client (read in 2.16) tells that a broker cannot be reached."""


def unreachable_broker(error: KafkaError) -> str | None:
    """Return which broker does not answer, and why, if an error of a connection says so."""
    match = _FAILED_CONNECTION.fullmatch(error.str())
    return f"no answer at {match[1]}: {match[2].lower()}" if match else None


def classify_error(error: KafkaError, target: str, unreachable: Collection[str] = ()) -> ServiceError:
    """Return the exception that an error means, if it does not concern a row.

    `unreachable` are the answers of `unreachable_broker` for earlier errors.
    """
    if unreachable and error.code() in _UNREACHABLE_CODES:
        return TargetUnavailableError(f"{target}: {'; '.join(unreachable)}")
    advice = _ADVICE.get(error.code())
    if advice is not None:
        return KafkaTargetError(f"{target}: {advice} (Kafka said {error.name()}: {error.str()})")
    if error.code() in _FENCED_CODES:
        return FencedError(f"{target}: another process has its transactional id now: {error.str()}")
    # Everything else is an outage.
    return TargetUnavailableError(f"{target}: {error.name()}: {error.str()}")
