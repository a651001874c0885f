"""The coder of elements between stages and in state: Beam's coder, plus the microseconds that Beam's coder cuts off.

`WindowedValueCoder` writes timestamps in milliseconds. So a decoded element may be almost a millisecond earlier than
the original. The source never emitted that timestamp, and a correct watermark may already be past it, which would make
the element late.
"""

from __future__ import annotations

import functools
from typing import Any

from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue


class ElementCoder(coders.WindowedValueCoder):
    """`WindowedValueCoder`, preceded by the timestamp's microseconds below a whole millisecond.

    They have the sign of the timestamp, because Beam rounds towards zero. As a var-int, they take one byte if the
    timestamp is a whole millisecond.
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


@functools.cache
def encoded_impulse() -> bytes:
    """Return the element of an Impulse: empty bytes in the global window, encoded."""
    coder = ElementCoder(coders.BytesCoder(), coders.coders.GlobalWindowCoder())
    encoded: bytes = coder.get_impl().encode_nested(GlobalWindows.windowed_value(b""))
    return encoded
