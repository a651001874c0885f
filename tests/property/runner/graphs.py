"""Random batch graphs of transforms for which every Beam runner must give the same result.

A graph is a list of `(step, a, b)`: the step consumes one existing PCollection, chosen by `a`, or two with the
same windowing, chosen by `a` and `b`, and produces a new one. All elements are pairs of a key and an integer.
PCollections without a consumer are collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.metrics import Metrics
from apache_beam.transforms import userstate, window
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.utils.timestamp import Timestamp

Pairs: TypeAlias = beam.PCollection
Graph: TypeAlias = list[tuple[str, int, int]]

KEYS: dict[str, list[Any]] = {
    "text": ["", "a", "ключ", "z" * 40],
    "bytes": [b"", b"\x00", b"\xff" * 3],
    "numbers": [0, -1, (1 << 63) - 1, 2.5],
    "tuples": [("a", 1), ("a", 2), ("b", ("c", None))],
    "mixed": [None, True, "", b"", 0.5, (None,)],
}
"""Pools of keys; the mixed ones have only the coder that pickles what it does not know.

Integers have 64 bits at most: Beam's coder of what are all integers takes no others.
"""


def kept(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.Map(lambda kv: kv)


def mapped(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.Map(lambda kv: (kv[0], kv[1] * 2 + 1))


def filtered(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.Filter(lambda kv: kv[1] % 3 != 0)


def rekeyed(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.Map(lambda kv: ((kv[1] % 3, repr(kv[0])), kv[1]))


def typed(pairs: Pairs, name: str) -> Pairs:
    named = beam.Map(lambda kv: (repr(kv[0]), kv[1])).with_output_types(tuple[str, int])
    return pairs | name >> named


def shifted(pairs: Pairs, name: str) -> Pairs:
    """Change timestamps; elements are put into the global window first, because other windows restrict timestamps."""
    anywhere = pairs | f"{name} anywhere" >> beam.WindowInto(window.GlobalWindows())
    return anywhere | name >> beam.Map(lambda kv: window.TimestampedValue(kv, kv[1] % 60))


def in_whole_seconds(pair: Any, at: Any = beam.DoFn.TimestampParam) -> window.TimestampedValue:
    """Round timestamps to seconds: Beam's runner truncates window ends to milliseconds, ours does not."""
    return window.TimestampedValue(pair, min(at.micros // 1_000_000, 1000))


def reshuffled(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.Reshuffle()


def grouped(pairs: Pairs, name: str) -> Pairs:
    groups = pairs | name >> beam.GroupByKey()
    return groups | f"{name} sizes" >> beam.MapTuple(
        lambda key, values: (key, len(list(values)) + sum(values))
    )


def summed(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.CombinePerKey(sum)


def fanned(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.CombinePerKey(sum).with_hot_key_fanout(3)


def counted(pairs: Pairs, name: str) -> Pairs:
    counts = pairs | name >> beam.combiners.Count.PerElement()
    return counts | f"{name} flat" >> beam.MapTuple(lambda pair, count: (pair[0], pair[1] + count))


def largest(pairs: Pairs, name: str) -> Pairs:
    top = pairs | name >> beam.combiners.Top.LargestPerKey(2)
    return top | f"{name} each" >> beam.FlatMapTuple(lambda key, values: [(key, value) for value in values])


def total(pairs: Pairs, name: str) -> Pairs:
    values = pairs | f"{name} values" >> beam.Values()
    whole = values | name >> beam.CombineGlobally(sum).without_defaults()
    return whole | f"{name} keyed" >> beam.Map(lambda value: ("all", value))


def split(pairs: Pairs, name: str) -> Pairs:
    def by_parity(kv: Any) -> Iterator[Any]:
        yield beam.pvalue.TaggedOutput("even" if kv[1] % 2 == 0 else "odd", kv)

    tagged = pairs | name >> beam.FlatMap(by_parity).with_outputs("even", "odd")
    odd = tagged.odd | f"{name} odd" >> beam.Map(lambda kv: (kv[0], kv[1] + 1))
    return (tagged.even, odd) | f"{name} both" >> beam.Flatten()


def chained(pairs: Pairs, name: str) -> Pairs:
    """Apply a step of each kind that runs in a chain."""
    doubled = pairs | f"{name} flat" >> beam.FlatMap(lambda kv: iter([kv, kv]) if kv[1] % 2 else None)
    swapped = doubled | f"{name} tuple" >> beam.MapTuple(lambda key, value: (value, key))
    kept = swapped | f"{name} filter" >> beam.Filter(lambda vk: vk[0] % 5 != 0)
    back = kept | f"{name} back" >> beam.MapTuple(lambda value, key: (key, value + 1))
    keyed = back | f"{name} with keys" >> beam.WithKeys(lambda kv: kv[0])
    return keyed | f"{name} values" >> beam.Values()


class CountFn(beam.DoFn):
    """Counts its elements in a metric. An odd element becomes two, and a multiple of four none."""

    def __init__(self) -> None:
        self._elements = Metrics.counter("graph", "elements")

    def process(self, element: Any) -> list[Any] | None:
        self._elements.inc()
        if element[1] % 4 == 0:
            return None
        return [element, (element[0], element[1] + 1)] if element[1] % 2 else [element]


def metered(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.ParDo(CountFn())


class HoldFn(beam.DoFn):
    """Emits its elements at the end of the bundle."""

    def start_bundle(self) -> None:
        self._held: list[Any] = []

    def process(self, element: Any) -> None:
        self._held.append(element)

    def finish_bundle(self) -> Iterator[Any]:
        Metrics.counter("graph", "held").inc(len(self._held))
        for element in self._held:
            yield window.GlobalWindows.windowed_value(element, Timestamp(element[1] % 30))


def held(pairs: Pairs, name: str) -> Pairs:
    anywhere = pairs | f"{name} anywhere" >> beam.WindowInto(window.GlobalWindows())
    same = anywhere | f"{name} before" >> beam.Map(lambda kv: kv)
    return same | name >> beam.ParDo(HoldFn()) | f"{name} after" >> beam.Map(lambda kv: kv)


def sometimes_tagged(pair: Any) -> Iterator[Any]:
    """Emit plain elements and others from one step."""
    yield pair
    if pair[1] % 3 == 0:
        yield beam.pvalue.TaggedOutput("third", pair)


def tagged(pairs: Pairs, name: str) -> Pairs:
    both = pairs | name >> beam.FlatMap(sometimes_tagged).with_outputs("third", main="all")
    third = both.third | f"{name} third" >> beam.Map(lambda kv: (kv[0], kv[1] - 1))
    third |= f"{name} third filter" >> beam.Filter(lambda kv: kv[1] % 2)
    return (both["all"] | f"{name} all" >> beam.Map(lambda kv: kv), third) | f"{name} both" >> beam.Flatten()


class ListsFn(beam.DoFn):
    """Takes and emits batches of pairs: lists."""

    def process_batch(self, batch: list[Any]) -> Iterator[list[Any]]:
        yield [(key, value + 2) for key, value in batch]

    def get_input_batch_type(self, input_element_type: Any) -> Any:
        return list[input_element_type]

    def get_output_batch_type(self, input_element_type: Any) -> Any:
        return list[input_element_type]

    def infer_output_type(self, input_type: Any) -> Any:
        return input_type


def batched(pairs: Pairs, name: str) -> Pairs:
    twice = pairs | name >> beam.ParDo(ListsFn()) | f"{name} again" >> beam.ParDo(ListsFn())
    return twice | f"{name} after" >> beam.Filter(lambda kv: kv[1] % 4)


class SumAtTheEnd(beam.DoFn):
    """Keeps values and a count in state; a timer at the end of the window emits both."""

    VALUES = userstate.BagStateSpec("values", beam.coders.VarIntCoder())
    COUNT = userstate.CombiningValueStateSpec("count", beam.combiners.CountCombineFn())
    LAST = userstate.ReadModifyWriteStateSpec("last", beam.coders.FastPrimitivesCoder())
    END = userstate.TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        within: Any = beam.DoFn.WindowParam,
        values: Any = beam.DoFn.StateParam(VALUES),
        count: Any = beam.DoFn.StateParam(COUNT),
        last: Any = beam.DoFn.StateParam(LAST),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        values.add(element[1])
        count.add(element[1])
        last.write(element[0])
        end.set(within.max_timestamp())

    @userstate.on_timer(END)
    def at_the_end(
        self,
        key: Any = beam.DoFn.KeyParam,
        values: Any = beam.DoFn.StateParam(VALUES),
        count: Any = beam.DoFn.StateParam(COUNT),
        last: Any = beam.DoFn.StateParam(LAST),
    ) -> Iterator[tuple[Any, int]]:
        yield (key, last.read()), sum(values.read()) * 3 + count.read()
        values.clear()


def remembered(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.ParDo(SumAtTheEnd())


class Parts(RestrictionProvider):
    """Reads a pair in up to four parts; the initial split makes two restrictions if there are enough parts."""

    def initial_restriction(self, element: Any) -> OffsetRange:
        return OffsetRange(0, element[1] % 4 + 1)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return restriction.size()

    def split(self, element: Any, restriction: OffsetRange) -> Iterator[OffsetRange]:
        return restriction.split(2)


class ReadFn(beam.DoFn):
    """Emits a pair for each part, with the sum of the side input if there is one.

    Without a side input it defers the residual after each part.
    """

    def process(
        self, element: Any, beside: Any = (), tracker: Any = beam.DoFn.RestrictionParam(Parts())
    ) -> Iterator[tuple[Any, int]]:
        part = tracker.current_restriction().start
        while tracker.try_claim(part):
            yield element[0], element[1] * 5 + part + sum(beside)
            part += 1
            if beside == ():
                tracker.defer_remainder()
                return


def read(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.ParDo(ReadFn())


def read_beside(pairs: Pairs, other: Pairs, name: str) -> Pairs:
    side = beam.pvalue.AsList(other | f"{name} values" >> beam.Values())
    return pairs | name >> beam.ParDo(ReadFn(), side)


def flattened(pairs: Pairs, other: Pairs, name: str) -> Pairs:
    return (pairs, other) | name >> beam.Flatten()


def joined(pairs: Pairs, other: Pairs, name: str) -> Pairs:
    doubled = other | f"{name} other" >> beam.Map(lambda kv: (kv[0], kv[1] * 10))
    both = (pairs, doubled) | name >> beam.CoGroupByKey()
    return both | f"{name} sums" >> beam.MapTuple(lambda key, sides: (key, sum(map(sum, sides))))


def with_list(pairs: Pairs, other: Pairs, name: str) -> Pairs:
    side = beam.pvalue.AsList(other | f"{name} values" >> beam.Values())
    return pairs | name >> beam.Map(lambda kv, all_: (kv[0], kv[1] + sum(all_) + len(all_)), side)


def with_iterable(pairs: Pairs, other: Pairs, name: str) -> Pairs:
    side = beam.pvalue.AsIter(other)
    return pairs | name >> beam.Map(lambda kv, all_: (kv[0], kv[1] + sum(v for _, v in all_)), side)


def with_dict(pairs: Pairs, other: Pairs, name: str) -> Pairs:
    side = beam.pvalue.AsDict(other | f"{name} totals" >> beam.CombinePerKey(sum))
    return pairs | name >> beam.Map(lambda kv, of: (kv[0], kv[1] - of.get(kv[0], 0)), side)


def with_many(pairs: Pairs, other: Pairs, name: str) -> Pairs:
    side = beam.pvalue.AsMultiMap(typed(other, f"{name} typed"))
    return pairs | name >> beam.Map(lambda kv, of: (kv[0], kv[1] + sum(of[repr(kv[0])])), side)


def with_one(pairs: Pairs, other: Pairs, name: str) -> Pairs:
    whole = beam.CombineGlobally(_sum_and_one).without_defaults()
    side = other | f"{name} values" >> beam.Values() | f"{name} max" >> whole
    return pairs | name >> beam.Map(lambda kv, one: (kv[0], kv[1] + (one or 0)), _single(side))


def _sum_and_one(values: Any) -> int:
    return sum(values)


def _single(pcollection: Pairs) -> Any:
    return beam.pvalue.AsSingleton(pcollection, default_value=7)


ONE: dict[str, Callable[[Pairs, str], Pairs]] = {
    "keep": kept,
    "map": mapped,
    "filter": filtered,
    "rekey": rekeyed,
    "typed": typed,
    "shift": shifted,
    "reshuffle": reshuffled,
    "group": grouped,
    "sum": summed,
    "fanout": fanned,
    "count": counted,
    "top": largest,
    "total": total,
    "split": split,
    "batch": batched,
    "chain": chained,
    "metered": metered,
    "held": held,
    "tagged": tagged,
    "state": remembered,
    "read": read,
}
TWO: dict[str, Callable[[Pairs, Pairs, str], Pairs]] = {
    "flatten": flattened,
    "join": joined,
    "list": with_list,
    "iter": with_iterable,
    "dict": with_dict,
    "multimap": with_many,
    "singleton": with_one,
    "read beside": read_beside,
}
EARLIEST, LATEST = window.TimestampCombiner.OUTPUT_AT_EARLIEST, window.TimestampCombiner.OUTPUT_AT_LATEST
WINDOWS: dict[str, dict[str, Any]] = {
    "global": {"windowfn": window.GlobalWindows()},
    "fixed": {"windowfn": window.FixedWindows(10)},
    "earliest": {"windowfn": window.FixedWindows(7), "timestamp_combiner": EARLIEST},
    "latest": {"windowfn": window.SlidingWindows(10, 5), "timestamp_combiner": LATEST},
    "sessions": {"windowfn": window.Sessions(4)},
}
MERGING = "sessions"
SIDES = {"read beside", "list", "iter", "dict", "multimap", "singleton"}
NOT_IN_MERGING = {*SIDES, "state", "fanout"}
"""Beam refuses these in merging windows. A fan-out puts sums into new sessions that depend on its random parts."""

STEPS = sorted([*ONE, *TWO, *WINDOWS])


@dataclass(slots=True)
class _There:
    """A PCollection of a graph."""

    pairs: Pairs
    windows: str
    taken: bool = False


def build(
    pipeline: beam.Pipeline,
    data: list[tuple[Any, int, int]],
    graph: Graph,
    collect: Callable[[str], beam.DoFn],
) -> None:
    """Add a graph to a pipeline, over elements of (key, value, seconds).

    Graphs with side inputs have no state and no reads that defer a residual: FnApiRunner delivers a side input
    twice if its producer shares a stage with a DoFn that has timers or residuals (a list of one element and a
    parallel `state` show it). A graph has at most one step with state. FnApiRunner fires the timers of a
    stateful step too early, before its elements have arrived, if its input comes from another stateful step
    (one element, `state`, `keep`, `state` and another `state`) or from a read that has not finished (`read`,
    `state`).
    """
    unusable = {"state", "read"} if SIDES & {step for step, _, _ in graph} else set()
    source = pipeline | beam.Create(data)
    stamped = source | "Stamp" >> beam.Map(lambda kvt: window.TimestampedValue((kvt[0], kvt[1]), kvt[2]))
    there = [_There(stamped, "global")]
    for number, (step, a, b) in enumerate(graph):
        one = there[-1 - a % len(there)]
        if step in unusable or (one.windows == MERGING and step in NOT_IN_MERGING):
            continue
        name = f"{number} {step}"
        one.taken = True
        if step in ("state", "read"):
            unusable |= {"state", "read"} if step == "state" else {"state"}
        if step in WINDOWS:
            whole = one.pairs | f"{name} seconds" >> beam.Map(in_whole_seconds)
            there.append(_There(whole | name >> beam.WindowInto(**WINDOWS[step]), step))
        elif step in ONE:
            there.append(
                _There(ONE[step](one.pairs, name), "global" if step in ("shift", "held") else one.windows)
            )
        else:
            alike = [each for each in there if each.windows == one.windows]
            other = alike[-1 - b % len(alike)]
            other.taken = True
            there.append(_There(TWO[step](one.pairs, other.pairs, name), one.windows))
    for number, each in enumerate(there):
        if not each.taken:
            _ = each.pairs | f"Collect {number}" >> beam.ParDo(collect(f"{number}"))
