"""Runs a stage that begins with a stateful DoFn: drops late elements, fires timers, deletes expired windows' state."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Any

from apache_beam.coders import coder_impl
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from penstock.attempt import at_watermark
from penstock.runner.harness.bundle import StageProcessor
from penstock.runner.harness.user_state import GC_FAMILY
from penstock.runner.store.cells import EVENT, NO_HOLD_US, PROCESSING, TimerEntry
from penstock.runner.tasks.epoch import MAX_US
from penstock.runner.tasks.stage_bundle import StageContext, StageResult, StoredBundle
from penstock.runner.windows.expiry import expiry_us


class StatefulBundle(StoredBundle):
    """A stage that begins with a stateful DoFn."""

    def __init__(self, processor: StageProcessor, context: StageContext) -> None:
        super().__init__(processor, context)
        self._keys: Any = processor.coder.wrapped_value_coder.key_coder().get_impl()
        windowing = processor.windowing
        self._lateness_us = windowing.allowed_lateness.micros
        # The global window never expires, and a check of each element's windows would be the largest cost of a cheap
        # stage.
        self._expires = not windowing.is_default() and not _is_global(windowing)

    def take(self, block: bytes) -> None:
        """Run a block of input, except elements of expired windows."""
        for element in self.processor.elements(block):
            self.take_element(element)

    def take_element(self, element: WindowedValue) -> None:
        """Run one element of input in its windows that have not expired."""
        self._start()
        if not self._expires:
            self.processor.process(element)
            return
        alive = tuple(w for w in element.windows if not self._expired(w))
        self.dropped += len(element.windows) - len(alive)
        if alive:
            kept = WindowedValue(element.value, element.timestamp, alive, element.pane_info)
            self.processor.process(kept)

    def finish(self, input_watermark_us: int) -> StageResult:
        """Fire due timers, delete expired windows, and write the state back."""
        if self._due(input_watermark_us):
            self._start()
            # Set expiry timers before timers fire: a window that was first written to in this epoch may expire in it,
            # and `_due_timers` finds such windows by their expiry timers.
            self._set_expiry_timers()
            with at_watermark(input_watermark_us):
                self._fire_all(input_watermark_us)
        metrics = self.processor.finish() if self._started else []
        if self._started:
            # Set them again, for windows to which callbacks have written. Delete expired windows only after `finish`,
            # in which Beam writes changed state: it would write deleted cells back.
            self._set_expiry_timers()
            self._delete_expired(input_watermark_us)
        return self._result(input_watermark_us, metrics)

    def _start(self) -> None:
        if not self._started:
            self._open()
            self.processor.state.attach(
                self._cells, self._timers, self._keys, self._windows, watches=self._expires
            )
        super()._start()

    def _expired(self, window: Any) -> bool:
        return bool(window.max_timestamp().micros + self._lateness_us < self._context.input_us)

    def _fire_all(self, watermark_us: int) -> None:
        bounded = self._context.bounded
        self._fire_due(EVENT, watermark_us)
        while self._fire_due(PROCESSING, MAX_US if bounded else self._context.now_us()):
            self._fire_due(EVENT, watermark_us)
            # A batch continues until no timer is left: no later epoch would fire those that callbacks have set.
            if not bounded:
                return

    def _fire_due(self, domain: bytes, limit_us: int) -> bool:
        """Fire due timers, earliest first; return whether any was due.

        A timer that a callback clears does not fire. An event-time timer that a callback sets fires in its turn, so a
        timer at the end of a window fires after all runs of a looping timer. A processing-time timer that a callback
        sets waits for the next call: the clock may have reached its time already, and a loop would never end.
        """
        # The timers that callbacks have set. Timers of one time fire in the order in which they were set; the number
        # also keeps `heapq` from comparing `TimerEntry`s.
        order = itertools.count()
        waiting: list[tuple[int, int, TimerEntry]] = []

        def fire_in_turn(timer: TimerEntry) -> None:
            if domain == EVENT == timer.domain and timer.fire_us <= limit_us:
                heapq.heappush(waiting, (timer.fire_us, next(order), timer))

        any_due = False
        due = self._due_timers(domain, limit_us)
        self.processor.state.on_set = fire_in_turn
        for timer in due:
            any_due = True
            while waiting and waiting[0][0] < timer.fire_us:
                self._take_and_fire(heapq.heappop(waiting)[2])
            self._take_and_fire(timer)
        while waiting:
            self._take_and_fire(heapq.heappop(waiting)[2])
        self.processor.state.on_set = None
        return any_due

    def _take_and_fire(self, timer: TimerEntry) -> None:
        # `take` returns False if a callback has cleared or moved the timer since it was found.
        if self._timers.take(timer):
            self._fire(timer)

    def _due_timers(self, domain: bytes, limit_us: int) -> Iterator[TimerEntry]:
        """Due timers, then the event-time timers after the end of a window that expires now. Found when called."""
        after_the_end: list[TimerEntry] = []
        # A separate pass over the timers, so that no list of all due timers is needed: there may be millions.
        for expiry in self._timers.due(domain, limit_us) if self._expires else ():
            if expiry.family == GC_FAMILY:
                # Beam's model: when a window expires, its remaining event-time timers fire before its state is deleted.
                left = self._timers.of_window(expiry.key_group, expiry.key, expiry.window)
                after_the_end.extend(t for t in left if t.domain == EVENT and t.fire_us > limit_us)
        reached = self._timers.due(domain, limit_us)
        due = (timer for timer in reached if timer.family != GC_FAMILY)
        return itertools.chain(due, sorted(after_the_end, key=lambda timer: timer.fire_us))

    def _fire(self, timer: TimerEntry) -> None:
        # `StateHandler.set_timer` encodes the key nested, because it is part of a state key too, and the window not.
        key = self._keys.decode_from_stream(coder_impl.create_InputStream(timer.key), True)
        window = self._windows.decode_from_stream(coder_impl.create_InputStream(timer.window), False)
        held = timer.hold_us if timer.hold_us != NO_HOLD_US else timer.fire_us
        # The output of a processing-time timer has the event time that the timer holds, not the clock's.
        at = held if timer.domain == PROCESSING else timer.fire_us
        self.processor.fire(timer.family.decode(), key, window, timer.tag.decode(), at, held)

    def _set_expiry_timers(self) -> None:
        """For each window that was written to, set a timer that deletes its state when it expires."""
        if not self._expires:
            return
        for group, key, encoded in self.processor.state.touched:
            window = self._windows.decode_from_stream(coder_impl.create_InputStream(encoded), False)
            at = expiry_us(window, self._lateness_us)
            self._timers.set(TimerEntry(group, key, encoded, GC_FAMILY, b"", EVENT, at, NO_HOLD_US))

    def _delete_expired(self, watermark_us: int) -> None:
        for timer in self._timers.take_due(EVENT, watermark_us) if self._expires else ():
            if timer.family == GC_FAMILY:
                self._cells.delete_window(timer.key_group, timer.key, timer.window)
                self._timers.delete_window(timer.key_group, timer.key, timer.window)


def _is_global(windowing: Any) -> bool:
    return isinstance(windowing.windowfn, GlobalWindows)
