"""Record checkpoints of this version: `python -m tests.golden.checkpoints.record VERSION`.

There are two: VERSION, and VERSION-side-file, in which every record has its lists in a side file. Run it once for each
release, before the release, and never again for the same version.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from penstock.runner.protocol.record import CommitRecord
from penstock.runner.protocol.record_codec import INLINE_BYTES
from penstock.runner.tasks.epoch import EpochLimits
from tests.golden.checkpoints import pipeline
from tests.simulation.stream import run_stream

FOLDER = Path(__file__).parent
LIMITS = EpochLimits(60.0, 100_000, 64 << 20)
EPOCHS = 6


def run(folder: Path, epochs: int | None = None, inline_bytes: int = INLINE_BYTES) -> list[str]:
    """Run the pipeline from the checkpoint below `folder`, to its end or for some epochs; return what it published."""
    pipeline.published.clear()

    def stop(record: CommitRecord) -> bool:
        return epochs is not None and record.epochs >= epochs and bool(record.state.publications)

    run_stream(pipeline.build, limits=LIMITS, folder=folder, stop=stop, inline_bytes=inline_bytes)
    return sorted(pipeline.published)


def record(name: str, inline_bytes: int) -> None:
    """Record one checkpoint, and what the pipeline publishes before and after it."""
    target = FOLDER / name
    target.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        before = run(Path(folder), EPOCHS, inline_bytes)
        shutil.copytree(Path(folder, "checkpoint"), target / "checkpoint")
        after = run(Path(folder))
    records = sorted((target / "checkpoint" / "records").iterdir())
    for old in records[:-1]:
        old.unlink()
    (target / "expected.json").write_text(json.dumps({"before": before, "after": after}, indent=1) + "\n")


def main(version: str) -> int:
    # A version that has a checkpoint keeps it.
    for name, inline_bytes in ((version, INLINE_BYTES), (f"{version}-side-file", 0)):
        if not (FOLDER / name).exists():
            record(name, inline_bytes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
