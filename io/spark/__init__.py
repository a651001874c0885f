"""Spark as a sink: each epoch's events as a DataFrame, for a function that writes them with any Spark writer.

def save(dataframe, epoch_id):
    dataframe.write.mode("overwrite").parquet(f"/lake/orders/epoch={epoch_id}")

events | WriteToSpark(save)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.io.spark.write import WriteToSpark

__all__ = ["WriteToSpark"]

_HOMES = {"WriteToSpark": "write"}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
