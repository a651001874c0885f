"""Build the wheels of both distributions: `make dist`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = (".", "emulators")


def build(target: Path, *distributions: str) -> list[Path]:
    """Build wheels from a copy of all files that are tracked or not ignored, and return them.

    A build in the checkout would also take what an earlier one left in its folder `build`, for example removed modules.

    Raises:
        subprocess.CalledProcessError: a build failed; pip has printed why.
    """
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder))
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "wheel",
            "--quiet",
            "--no-deps",
        ]
        command += ["--no-build-isolation", "--wheel-dir", str(target)]
        sources = [str(Path(folder, name)) for name in distributions or DISTRIBUTIONS]
        subprocess.run([*command, *sources], check=True)
    return sorted(target.glob("penstock*.whl"))


def _copy(folder: Path) -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def main() -> int:
    """Build both wheels into `dist`, and print the command that installs them."""
    target = ROOT / "dist"
    shutil.rmtree(target, ignore_errors=True)
    print("Building the wheels of penstock and penstock-emulators (ten seconds)", flush=True)
    try:
        penstock, emulators = (each.relative_to(ROOT) for each in build(target))
    except subprocess.CalledProcessError:
        return 1
    print("Install them with the extras that you need (docs/install.md), in any environment, for example:")
    print(f"    pip install '{penstock}[quickstart]' {emulators}")
    print("    penstock quickstart")
    return 0


if __name__ == "__main__":
    sys.exit(main())
