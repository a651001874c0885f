"""The watermark of a reader whose restriction is a frontier."""

from __future__ import annotations

from typing import Any

from apache_beam import coders
from apache_beam.io.iobase import WatermarkEstimator
from apache_beam.transforms.core import WatermarkEstimatorProvider
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp


def beam_watermark(watermark: int | None) -> Timestamp:
    """Return a frontier's watermark for Beam, rounded down to milliseconds; None becomes the end of time.

    Beam's coders cut the timestamps of elements down to milliseconds between stages of other runners; `PySparkRunner`
    keeps microseconds. A finer watermark would pass an element on its way and make it late.
    """
    return MAX_TIMESTAMP if watermark is None else Timestamp(micros=watermark // 1_000_000 * 1000)


class FrontierWatermarkEstimator(WatermarkEstimator):
    """Reports the watermark that the reader sets from its frontier; it never goes back."""

    def __init__(self, watermark: Timestamp) -> None:
        self._watermark = watermark

    def observe_timestamp(self, timestamp: Timestamp) -> None:
        """Do nothing: the newest record of one partition says nothing about the other partitions."""

    def current_watermark(self) -> Timestamp:
        return self._watermark

    def get_estimator_state(self) -> Timestamp:
        # The state is the watermark itself, so a bundle that resumes never reports an earlier one.
        return self._watermark

    def set_watermark(self, timestamp: Timestamp) -> None:
        """Raise the watermark to `timestamp`; a lower one changes nothing."""
        if timestamp > self._watermark:
            self._watermark = timestamp


class FrontierWatermarkEstimatorProvider(WatermarkEstimatorProvider):
    """The state of the estimator is its watermark, a Beam Timestamp."""

    def initial_estimator_state(self, element: Any, restriction: Any) -> Timestamp:
        return beam_watermark(restriction.watermark)

    def create_watermark_estimator(self, estimator_state: Timestamp) -> FrontierWatermarkEstimator:
        return FrontierWatermarkEstimator(estimator_state)

    def estimator_state_coder(self) -> coders.Coder:
        return coders.TimestampCoder()
