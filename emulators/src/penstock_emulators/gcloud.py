"""Find the emulators of the Google Cloud SDK."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ServiceError


class EmulatorNotFoundError(ServiceError):
    """The emulator is not on this machine; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Component:
    """An emulator of the SDK.

    `name` is what people call it, `component` its name for gcloud, `package` the name of its Debian package. `binary`
    is the program, in the `folder` below the root of the SDK. `variable` is the environment variable that names the
    program, or the folder that holds it.
    """

    name: str
    component: str
    package: str
    folder: str
    binary: str
    variable: str

    def find_binary(self) -> Path:
        """Return the path of the program: by `variable`, else in the SDK of the `gcloud` on PATH.

        Raises:
            EmulatorNotFoundError: it is not there; the message says how to get it.
        """
        if named := os.environ.get(self.variable):
            path = Path(named)
            # People set the variable to the program or to its folder.
            path = path / self.binary if path.is_dir() else path
            return self._existing(path, f"{self.variable} is {named!r}, and there is no {self.binary} there.")
        gcloud = shutil.which("gcloud")
        if gcloud is None:
            raise self._not_found(f"No gcloud on PATH, so no {self.name} emulator.")
        # `gcloud` is <root>/bin/gcloud, often reached through a link. To ask it takes a second.
        near = Path(gcloud).resolve().parent.parent / self.folder / self.binary
        if near.exists():
            return near
        path = _sdk_root(gcloud) / self.folder / self.binary
        return self._existing(path, f"The {self.name} emulator is not among gcloud's components.")

    def _existing(self, path: Path, otherwise: str) -> Path:
        if not os.access(path, os.X_OK):
            raise self._not_found(otherwise)
        return path

    def _not_found(self, reason: str) -> EmulatorNotFoundError:
        return EmulatorNotFoundError(
            f"{reason} Install the Google Cloud SDK and run `gcloud components install {self.component}` (or install "
            f"the package {self.package}), or set {self.variable} to the folder that holds {self.binary}."
        )


SPANNER = Component(
    "Spanner",
    "cloud-spanner-emulator",
    "google-cloud-cli-spanner-emulator",
    "bin/cloud_spanner_emulator",
    "emulator_main",
    "SPANNER_EMULATOR_BIN",
)
BIGTABLE = Component(
    "Bigtable",
    "bigtable",
    "google-cloud-cli-bigtable-emulator",
    "platform/bigtable-emulator",
    "cbtemulator",
    "BIGTABLE_EMULATOR_BIN",
)
PUBSUB = Component(
    "Pub/Sub",
    "pubsub-emulator",
    "google-cloud-cli-pubsub-emulator",
    "platform/pubsub-emulator/bin",
    "cloud-pubsub-emulator",
    "PUBSUB_EMULATOR_BIN",
)


def _sdk_root(gcloud: str) -> Path:
    command = [gcloud, "info", "--format=value(installation.sdk_root)"]
    # An empty answer becomes a path that does not exist.
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return Path(answer.stdout.strip() or os.devnull)
