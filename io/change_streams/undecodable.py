"""The error output of every source: records that the service sent and that the source cannot decode.

    records, undecodable = pipeline | ReadFromSpannerChangeStream(…).with_exception_handling()
    undecodable | DeadLetters() | …

The rule is the same for all sources and is applied in one place, `outputs`:

- **Without an error output the read fails** with a DecodeError, before a record after the bad one is emitted.
- With one, an `UndecodableRecord` is emitted there, with the event time of the record, and the read continues. It has
  a position like any other record: it is claimed, it moves the watermark, and it is not emitted again after a
  checkpoint.
- **A message that may change which partitions are read always fails the read**: bytes that are no message, a message
  without a readable position, an unknown kind of record. To skip it could lose every later change of a partition.

How a source uses it: its decoder catches the errors of *one data record* whose position it can read, and returns an
`UndecodableRecord` in place of the record. From there the record takes the way of all records: a step that is claimed,
then the sequence of records of the claim. The source's filters must let it pass. `stream` may stay empty; the DoFn
sets it. Pure; `coders` has the coder.
"""

from __future__ import annotations

from dataclasses import dataclass

UNDECODABLE = "undecodable"
"""The tag of the error output, and the name of the counter of its records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecodableRecord:
    """A data record that the source could not decode.

    - `commit_timestamp`: nanoseconds since 1970; its event time.
    - `stream`: the change stream, as in messages.
    - `partition`, `position`: where it is in the stream, in the words of the source, such as a partition token and
      ``transaction/record sequence``. Together with `commit_timestamp` they identify the record.
    - `reason`: the fault, without values of the row.
    - `data`: the bytes of the record as the service sent them. They contain the values of the row.
    - `format`: the type of the bytes, usually the name of a protobuf message, such as ``google.protobuf.Value``.
    """

    commit_timestamp: int
    partition: str
    position: str
    reason: str
    data: bytes
    format: str
    stream: str = ""

    def __repr__(self) -> str:  # without the data, which is the user's
        return f"<undecodable record at {self.position}: {self.reason}>"
