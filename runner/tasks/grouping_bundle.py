"""Runs a stage that begins with the reading half of a GroupByKey: collects values by key and window, and emits panes.

There are three classes. `PanesBundle` is for streams: `panes.Panes` keeps windows in the state store and fires their
panes. The others are for batches, in which all values of a group are there before it is emitted: `CompleteBundle` emits
one pane (default trigger), `TriggeredBundle` emits the panes that Beam's trigger driver fires (other triggers).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from apache_beam.coders import coder_impl
from apache_beam.transforms.timeutil import TimestampCombinerImpl
from apache_beam.transforms.trigger import create_trigger_driver
from apache_beam.transforms.window import TimestampCombiner
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming, WindowedValue

from penstock.runner.harness.bundle import StageProcessor
from penstock.runner.tasks.stage_bundle import StageBundle, StageContext, StageResult, StoredBundle
from penstock.runner.windows.grouping import CompleteGroup, Grouping, read_group
from penstock.runner.windows.merging import WindowMerger
from penstock.runner.windows.panes import NOTHING_HELD, Pane, Panes
from penstock.runner.windows.triggers import TriggerTree

_SHOWN = 20
"""Number of values that the `repr` of a group shows."""
_DECODED_TOGETHER, _DECODED_BYTES = 2000, 1 << 16
"""A group of at most so many values and encoded bytes is decoded as a list."""
_COUNT = struct.Struct(">i")
"""The number of elements with which Beam's encoding of a list begins."""


class _Values:
    """The values of a group. Each iteration reads and decodes them, so a large group is never held in memory."""

    def __init__(self, coder: Any, chunks: Iterable[bytes], count: int) -> None:
        self._coder = coder
        self._chunks = chunks
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        if self._count <= _DECODED_TOGETHER and type(self._chunks) is list:
            encoded = _COUNT.pack(self._count) + b"".join(self._chunks)
            if len(encoded) <= _DECODED_BYTES:
                # Beam's compiled coder of lists takes a third of the time of a call for each value.
                return iter(coder_impl.ListCoderImpl(self._coder).decode(encoded))
        return self._decoded()

    def _decoded(self) -> Iterator[Any]:
        for chunk in self._chunks:
            stream = coder_impl.create_InputStream(chunk)
            while stream.size() > 0:
                yield self._coder.decode_from_stream(stream, True)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        """A list of the first values."""
        shown = [repr(value) for value in itertools.islice(self, _SHOWN)]
        return f"[{', '.join(shown)}{', …' if self._count > _SHOWN else ''}]"

    def __reduce__(self) -> tuple[Callable[[Iterable[Any]], list[Any]], tuple[list[Any]]]:
        return list, (list(self),)


# Beam's fallback coder then encodes a group as a list, so a DoFn may emit the group that it got.
coder_impl.FastPrimitivesCoderImpl.register_iterable_like_type(_Values)


class PanesBundle(StoredBundle):
    """The reading half of a GroupByKey in a stream."""

    def __init__(self, processor: StageProcessor, context: StageContext) -> None:
        super().__init__(processor, context)
        pair = processor.coder.wrapped_value_coder
        self._keys: Any = pair.key_coder().get_impl()
        self._values: Any = pair.value_coder().get_impl()
        windowing = processor.windowing
        self._tree = TriggerTree(processor.trigger, merging=windowing.windowfn.is_merging())
        self._lateness_us = windowing.allowed_lateness.micros
        self._grouping = Grouping()

    def take(self, block: bytes) -> None:
        """Collect a block of groups, except those whose window has expired."""
        stream = coder_impl.create_InputStream(block)
        expired: dict[bytes, bool] = {}
        while stream.size() > 0:
            key, window, first_us, last_us, count, values = read_group(stream)
            if window not in expired:
                # Decoded once per block and window, and not once per group: a block has many keys and few windows.
                end_us = self._windows.decode_nested(window).max_timestamp().micros
                expired[window] = end_us + self._lateness_us < self._context.input_us
            if expired[window]:
                self.dropped += count
                continue
            # The whole group is below the output watermark. That never goes back, so the group cannot hold it.
            if last_us < self._context.output_us:
                first_us, last_us = NOTHING_HELD
            self._grouping.add(key, window, first_us, last_us, values, count)

    def finish(self, input_watermark_us: int) -> StageResult:
        """Fire the panes that are due: because of new elements, the watermark or the clock. Store the other values."""
        metrics: list[bytes] = []
        if self._grouping or self._due(input_watermark_us):
            self._open()
            panes = self._panes()
            groups = self._grouping.groups()
            # `groups` is sorted by key, which `groupby` relies on.
            for key, windows in itertools.groupby(groups, key=lambda group: group.key):
                self.dropped += panes.add_elements(key, list(windows))
            self._grouping.close()
            panes.advance(input_watermark_us)
            if self._started:
                metrics = self.processor.finish()
            panes.release_emitted()  # last: a DoFn may keep a pane and read it in finish_bundle
        return self._result(input_watermark_us, metrics)

    def discard(self) -> None:
        """End the bundle after an error; spilled groups are deleted."""
        self._grouping.close()
        super().discard()

    def _set_back(self, back_us: int) -> None:
        self._panes().set_back(back_us)

    def _panes(self) -> Panes:
        return Panes(
            self.processor.windowing,
            self._tree,
            self._windows,
            self._cells,
            self._timers,
            self._emit,
            input_us=self._context.input_us,
            output_us=self._context.output_us,
            now_us=self._context.now_us,
        )

    def _emit(self, pane: Pane) -> None:
        self._start()
        pair = (self._keys.decode_nested(pane.key), _Values(self._values, pane.values, pane.count))
        self.processor.process(WindowedValue(pair, pane.timestamp, (pane.window,), pane.info))


class CompleteBundle(StageBundle):
    """The reading half of a GroupByKey in batch, with the default trigger: one pane per window, with all its values.

    As on Beam's Python runners, only the pane of the default windowing says that it is the last.
    """

    def __init__(self, processor: StageProcessor, context: StageContext) -> None:
        super().__init__(processor, context)
        pair = processor.coder.wrapped_value_coder
        self._keys: Any = pair.key_coder().get_impl()
        self._values: Any = pair.value_coder().get_impl()
        self._windows: Any = processor.coder.window_coder.get_impl()
        windowfn = processor.windowing.windowfn
        self._pane = PaneInfo(True, processor.windowing.is_default(), PaneInfoTiming.ON_TIME, 0, 0)
        combiner: Any = processor.windowing.timestamp_combiner
        self._combine: TimestampCombinerImpl = TimestampCombiner.get_impl(combiner, windowfn)
        self._at_window_end = combiner == TimestampCombiner.OUTPUT_AT_EOW
        self._known: dict[bytes, tuple[Any, Timestamp]] = {}
        self._grouping = Grouping()
        self._merging = WindowMerger(windowfn, self._windows) if windowfn.is_merging() else None

    def take(self, block: bytes) -> None:
        """Collect a block of groups."""
        stream = coder_impl.create_InputStream(block)
        while stream.size() > 0:
            key, window, first_us, last_us, count, values = read_group(stream)
            self._grouping.add(key, window, first_us, last_us, values, count)

    def finish(self, input_watermark_us: int) -> StageResult:
        """Emit each group."""
        if self._grouping:
            self._start()
            groups = self._grouping.groups()
            merged = self._merging.merge_groups(groups) if self._merging else groups
            self.processor.process_all(map(self._element, merged))
        result = super().finish(input_watermark_us)
        self._grouping.close()  # last: a DoFn may keep a group and read it in finish_bundle
        return result

    def discard(self) -> None:
        """End the bundle after an error; spilled groups are deleted."""
        self._grouping.close()
        super().discard()

    def _element(self, group: CompleteGroup) -> WindowedValue:
        window, end = self._window(group.window)
        at = end if self._at_window_end else self._output_at(window, group)
        pair = (self._keys.decode_nested(group.key), _Values(self._values, group.chunks, group.count))
        return WindowedValue(pair, at, (window,), self._pane)

    def _output_at(self, window: Any, group: CompleteGroup) -> Timestamp:
        # The lowest and the highest timestamp are enough: the timestamp combiners and window functions of Beam 2.77 are
        # monotonic.
        times = (group.first_us, group.last_us)
        stamps = [self._combine.assign_output_time(window, Timestamp(micros=at)) for at in times]
        return self._combine.merge(window, stamps)

    def _window(self, encoded: bytes) -> tuple[Any, Timestamp]:
        """A window and its last timestamp."""
        known = self._known.get(encoded)
        if known is None:
            # Bounded, because with merging windows nearly every group has a different window.
            if len(self._known) > 1000:
                self._known.clear()
            window = self._windows.decode_nested(encoded)
            known = self._known[encoded] = (window, window.max_timestamp())
        return known


class TriggeredBundle(StageBundle):
    """The reading half of a GroupByKey whose trigger is not the default one, in batch: Beam's own driver fires.

    All values of a key are at hand at once, with their windows and timestamps; the watermark then passes
    everything. A key's values are held in memory, decoded.
    """

    def __init__(self, processor: StageProcessor, context: StageContext) -> None:
        super().__init__(processor, context)
        pair = processor.coder.wrapped_value_coder
        self._keys: Any = pair.key_coder().get_impl()
        self._elements: Any = processor.coder.get_impl()
        self._grouping = Grouping()

    def take(self, block: bytes) -> None:
        """Collect a block of pairs."""
        for element in self.processor.elements(block):
            key = self._keys.encode_nested(element.value[0])
            at = element.timestamp_micros
            # Grouped by key only, without the window: Beam's driver merges windows itself, and needs all elements of a
            # key together.
            self._grouping.add(key, b"", at, at, self._elements.encode_nested(element))

    def finish(self, input_watermark_us: int) -> StageResult:
        """Fire each key's panes."""
        if self._grouping:
            self._start()
            # With `is_batch` (Beam 2.77), a trigger that never fires becomes one that always does.
            driver = create_trigger_driver(self.processor.windowing, is_batch=True)
            for group in self._grouping.groups():
                self._fire(driver, group)
            self._grouping.close()
        return super().finish(input_watermark_us)

    def discard(self) -> None:
        """End the bundle after an error; spilled groups are deleted."""
        self._grouping.close()
        super().discard()

    def _fire(self, driver: Any, group: CompleteGroup) -> None:
        pairs = list(_Values(self._elements, group.chunks, group.count))
        key = self._keys.decode_nested(group.key)
        values = [pair.with_value(pair.value[1]) for pair in pairs]
        for pane in driver.process_entire_key(key, values):
            self.processor.process(pane)
