"""The first moments of the `penstock` command, before its modules are imported."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_while_modules_are_imported_ends_the_command_without_a_traceback(number: str) -> None:
    program = textwrap.dedent(
        f"""
        import os, signal, sys

        # Tests may run under `nohup`, which lets them and this process ignore SIGHUP.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

        class Interrupt:
            def find_spec(self, name, path=None, target=None):
                if name == "click":
                    os.kill(os.getpid(), signal.{number})

        sys.meta_path.insert(0, Interrupt())
        from penstock.cli.main import main
        sys.argv = ["penstock", "list"]
        main()
        """
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_commands_that_make_no_pipeline_do_without_beam() -> None:
    """Beam and what it imports take two seconds and 200 MB; Spark starts only after these imports."""
    program = (
        "import sys, penstock.cli.commands\n"
        "from penstock.runner import RemoteJob\n"
        "print({'apache_beam', 'pyarrow', 'pandas', 'pyspark'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
