"""A child that ends when its parent ends, also if the parent is killed.

    process = subprocess.Popen(guarded(command), stdin=subprocess.PIPE, start_new_session=True)

Nobody writes to the pipe. When the parent ends for any reason, the pipe ends, and the guard, a shell in the group of
the child, ends the group. The child keeps its process id and its exit code, because it replaces the shell that has
started it.

Linux has `PR_SET_PDEATHSIG` for this. It was rejected: it acts when the *thread* ends that has started the child, it
does not reach children of the child, and it needs Python code between `fork` and `exec`, in a process with threads.
"""

from __future__ import annotations

from collections.abc import Sequence

_GUARD = (
    "exec 3<&0 </dev/null; "
    # The guard must not keep the output of the child open: whoever reads it waits for its end.
    '(read -r _ <&3; kill -s "$0" 0) >/dev/null 2>&1 & '
    'exec 3<&-; exec "$@"'
)


def guarded(command: Sequence[object], signal: str = "KILL") -> list[str]:
    """Return the command that runs `command` with a guard, which sends `signal` to its process group.

    Start it with a pipe as standard input and in a new session, and close the pipe when the child has ended. The
    standard input of `command` is empty.
    """
    return ["/bin/sh", "-c", _GUARD, signal, *map(str, command)]
