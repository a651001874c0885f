"""Makes the simulation's modules importable by their names (`--import-mode=importlib` leaves that to us)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
