"""A publisher of Pub/Sub: messages with ids that are the same in every repeat."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from contextlib import contextmanager, suppress
from typing import Any

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher.exceptions import MessageTooLargeError
from google.cloud.pubsub_v1.types import PublisherOptions

from penstock.errors import ServiceError
from penstock.io.pubsub.errors import PubSubTargetError, classify_error
from penstock.io.pubsub.target import PubSubTarget
from penstock.io.pubsub.values import Message, complete_message, messages_of
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import (
    Delivery,
    EventBatch,
    Refusal,
    RefusalError,
    Sent,
)

_PARTLY_PUBLISHED = (
    "Other messages of its batch may be published already, and the next try publishes them again, with the same "
    "penstock_id"
)
_ANSWER_SECONDS = 60.0
"""How long to wait for the answer to one request."""


class PubSubSender:
    """See `penstock.io.staging.delivery.Sender`."""

    def __init__(self, target: PubSubTarget, skip_refused: bool) -> None:
        self._target, self._skip_refused = target, skip_refused
        # Ordering makes the client send one request of a key at a time.
        options: dict[str, Any] = {
            "publisher_options": PublisherOptions(enable_message_ordering=target.ordering)
        }
        # The client takes an emulator's address from the environment, and then ignores this option.
        if target.endpoint is not None and "PUBSUB_EMULATOR_HOST" not in os.environ:
            options["client_options"] = {"api_endpoint": target.endpoint}
        with self._errors():
            self._client = pubsub_v1.PublisherClient(**options)
        self._known: set[str] = set()

    def check(self) -> None:
        """Look for the topic, if its name does not depend on the event."""
        # A name with placeholders stands for topics that are not known yet.
        if "{" not in self._target.topic:
            with self._errors():
                self._topic(self._target.topic)
        if self._target.mark_complete:
            with self._errors(self._target.complete_name):
                self._topic(self._target.complete_topic)

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        """Publish the batch; see `Sender.send`. Equal deliveries have messages with equal attributes `penstock_id`."""
        refused: dict[int, Refusal] = {}
        messages: list[tuple[int, Message]] = []
        for index, event in enumerate(events):
            try:
                # All messages are made first, so a row that the format cannot express leaves nothing published.
                messages += [(index, each) for each in self._messages(event)]
            except ValueError as error:
                refused[index] = Refusal(index, str(error))
                if not self._skip_refused:
                    raise RefusalError(refused[index]) from error
        with self._errors():
            for index, reason in self._publish(messages):
                refused[index] = Refusal(index, reason)
                if not self._skip_refused:
                    raise RefusalError(refused[index], _PARTLY_PUBLISHED)
        return Sent(tuple(refused[index] for index in sorted(refused)))

    def mark_complete(self, job: str, sink: str, record: int, until_us: int) -> None:
        """Publish a mark to the topic of marks; see `penstock.publish.MarksComplete`."""
        # A topic has no content that could be compared. Subscribers compare the numbers of the records.
        message = complete_message(Mark.of(job, sink, record, until_us), self._target.complete_topic)
        with self._errors(self._target.complete_name):
            for _, reason in self._publish([(0, message)]):
                raise PubSubTargetError(f"{self._target.complete_name}: {reason}")

    def close(self) -> None:
        with suppress(Exception):  # the messages of a failed batch are published again by the next sender
            self._client.stop()

    def _messages(self, event: Any) -> list[Message]:
        target = self._target
        return messages_of(event, target.format, target.topic, ordering=target.ordering)

    def _publish(self, messages: list[tuple[int, Message]]) -> Iterator[tuple[int, str]]:
        """Publish and wait for the answers; yield the events whose messages are refused."""
        # Futures: the client collects messages into requests, and waiting for each would send them one by one.
        answers: list[Future[str]] = []
        for index, message in messages:
            topic = self._topic(message.topic)
            try:
                answer = self._client.publish(topic, message.data, message.ordering_key, **message.attributes)
            except MessageTooLargeError:
                yield index, "the message is larger than Pub/Sub takes"
                continue
            answers.append(answer)
        failed: Exception | None = None
        patience = _ANSWER_SECONDS
        for answer in answers:
            try:
                # The order of answers does not matter, only that each one is there.
                answer.result(timeout=patience)
            except Exception as error:
                # The client refuses later messages of this ordering key. The caller closes a sender that raised.
                failed = failed or error
                if isinstance(
                    error, NoAnswerError
                ):  # a service that is silent does not answer the others either
                    patience = 0.0
        if failed is not None:
            raise failed

    def _topic(self, name: str) -> str:
        path: str = self._client.topic_path(self._target.project, name)
        if path not in self._known:
            try:
                # No retry of the client: the sink repeats the batch, and logs it.
                self._client.get_topic(topic=path, retry=None, timeout=_ANSWER_SECONDS)
            except exceptions.NotFound:
                if not self._target.create_topics:
                    raise
                # Another worker has created it.
                with suppress(exceptions.AlreadyExists):
                    self._client.create_topic(name=path, retry=None, timeout=_ANSWER_SECONDS)
            self._known.add(path)
        return path

    @contextmanager
    def _errors(self, name: str | None = None) -> Iterator[None]:
        """Turn errors of the client into errors of the sink. `name` is the topic in messages; None: the target."""
        try:
            yield
        except GoogleAuthError as error:
            raise self._classified("UNAUTHENTICATED", error, name) from error
        except exceptions.GoogleAPICallError as error:
            status: Any = error.grpc_status_code
            raise self._classified(status.name if status else "", error, name, error.message) from error
        except (exceptions.RetryError, NoAnswerError) as error:
            raise self._classified("", error, name) from error

    def _classified(self, code: str, error: Exception, name: str | None, message: str = "") -> ServiceError:
        return classify_error(code, type(error).__name__, message, name or self._target.name)
