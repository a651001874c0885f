"""A runner in virtual time: epochs of a read, with more parts than slots, and bundles that are split.

It treats a reader as the Spark runner does: it joins all residuals, deals them out, gives each part to one of
the worker processes, which run them one after another, and asks for a split from another thread every 10 ms
once a bundle has run for the epoch's seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.io.change_streams.watermark import FrontierWatermarkEstimator, beam_watermark
from tests.simulation.virtual_time import VirtualTime


@dataclass(frozen=True)
class Configuration:
    """How a table is read. Seconds, unless the name says otherwise.

    `overhead` passes between two epochs; `faithful` says whether a part comes back to the process that had it.
    """

    partitions: int
    parts: int
    slots: int
    epoch: float
    overhead: float
    heartbeat: float
    max_concurrent_partitions: int = 32
    idle_stream_seconds: float = 3.0
    faithful: bool = False


class Idle:
    """Reads an idle table. `lags` holds for each commit the lag of its watermark and the length of its epoch."""

    def __init__(
        self, world: VirtualTime, configuration: Configuration, fns: list[Any], residual: Any, stream: Any
    ) -> None:
        self.world = world
        self.configuration = configuration
        self.fns = fns
        self.stream = stream
        self.residuals = [(residual, beam_watermark(residual.watermark))]
        self.lags: list[tuple[float, float]] = []

    def run(self, seconds: float) -> None:
        while self.world.now < seconds:
            self._epoch()

    def _epoch(self) -> None:
        world, rng = self.world, self.world.rng
        begun = world.now
        dealt = self.fns[0].rebalance(self.stream, self.residuals, self.configuration.parts)
        if not self.configuration.faithful:
            rng.shuffle(dealt)
        left: list[Any] = []
        slots = self.configuration.slots
        threads = [
            world.Thread(lambda slot=slot: left.extend(self._bundles(slot, dealt[slot::slots])))
            for slot in range(slots)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.residuals = left
        watermark = min(state for _, state in left).micros / 1e6
        self.lags.append((world.time() - watermark, world.now - begun))
        world.sleep(self.configuration.overhead * rng.uniform(0.5, 1.5))

    def _bundles(self, slot: int, parts: list[Any]) -> list[Any]:
        return [self._bundle(self.fns[slot], *part) for part in parts]

    def _bundle(self, fn: Any, frontier: Any, state: Any) -> Any:
        tracker, estimator = fn.create_tracker(frontier), FrontierWatermarkEstimator(state)
        deadline = self.world.now + self.configuration.epoch
        residual: list[Any] = []
        over: list[bool] = []

        def cut() -> None:
            self.world.sleep(deadline - self.world.now)
            while not over and not residual:
                self.world.sleep(0.01)
                if not over and (split := tracker.try_split(0)):
                    residual.append((split[1], estimator.current_watermark()))

        cutter = self.world.Thread(cut)
        cutter.start()
        fn.start_bundle()
        for _ in fn.process(self.stream, tracker, estimator):
            raise AssertionError("an idle table has no changes")
        over.append(True)
        cutter.join()
        return residual[0]

    def check(self) -> None:
        """Check that after a start-up the watermark was never further behind than a heartbeat, an epoch and a second.

        An epoch is as long as it took. With more partitions than streams, as many turns as it takes.
        """
        c = self.configuration
        turns = -(-c.partitions // min(c.parts, c.partitions) // c.max_concurrent_partitions)
        settled = [each for number, each in enumerate(self.lags) if number > 2 * turns]
        assert settled, f"{len(self.lags)} epochs"
        longest = max(seconds for _, seconds in settled) + 1.5 * c.overhead
        bound = turns * (c.heartbeat + longest) + 1
        worst = max(lag for lag, _ in settled)
        assert worst <= bound, (
            f"{worst:.1f} s behind, at most {bound:.1f} is right; epochs of {longest:.1f} s"
        )
