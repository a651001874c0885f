"""How elements travel between stages and are kept: Beam's coder, and the microseconds that it cuts off.

`WindowedValueCoder` writes timestamps in milliseconds. An element that has crossed it is up to a millisecond
earlier than it was: an event time that its source never gave, and earlier, perhaps, than a watermark that was true.
"""

from __future__ import annotations

from typing import Any

from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.utils.windowed_value import WindowedValue


class ElementCoder(coders.WindowedValueCoder):
    """`WindowedValueCoder`, preceded by the timestamp's microseconds below a whole millisecond.

    These have the sign of the timestamp, as Beam cuts towards zero; as a var-int, one byte for whole milliseconds.
    """

    def _create_impl(self) -> Any:
        return _ElementCoderImpl(super()._create_impl())


class _ElementCoderImpl(coder_impl.StreamCoderImpl):
    def __init__(self, impl: Any) -> None:
        self._encode = impl.encode_to_stream
        self._decode = impl.decode_from_stream

    def encode_to_stream(self, element: WindowedValue, stream: Any, nested: bool) -> None:
        at = element.timestamp_micros
        stream.write_var_int64(at % 1000 if at >= 0 else -(-at % 1000))
        self._encode(element, stream, nested)

    def decode_from_stream(self, stream: Any, nested: bool) -> WindowedValue:
        rest = stream.read_var_int64()
        element: WindowedValue = self._decode(stream, nested)
        if rest:
            element.timestamp_micros += rest
        return element
