"""A context that threads share: for changes of Beam's modules, which are the same for all threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext


def shared_by_threads(
    make: Callable[[], AbstractContextManager[None]],
) -> Callable[[], AbstractContextManager[None]]:
    """Decorate a context: the first thread enters it, and the last one leaves it, whichever these are.

    Otherwise two contexts that overlap would restore what they found in the wrong order, and leave the changes of the
    first one behind.
    """
    lock, users = threading.Lock(), 0
    entered: AbstractContextManager[None] = nullcontext()

    @contextmanager
    def shared() -> Iterator[None]:
        nonlocal users, entered
        with lock:
            if users == 0:
                entered = make()
                entered.__enter__()
            users += 1
        try:
            yield
        finally:
            with lock:
                users -= 1
                if users == 0:
                    entered.__exit__(None, None, None)

    return shared
