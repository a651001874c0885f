"""Moto's server for S3, in which a conditional put is one step, as in S3. The arguments are those of `moto.server`.

Moto looks for the object and then stores it. On a busy machine several puts of one new object succeeded.
"""

from __future__ import annotations

import threading
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import main

_conditional = threading.Lock()
_answer = DomainDispatcherApplication.__call__


def _answer_in_turn(self: Any, environ: dict[str, Any], start_response: Any) -> Any:
    if "HTTP_IF_NONE_MATCH" not in environ and "HTTP_IF_MATCH" not in environ:
        return _answer(self, environ, start_response)
    with _conditional:
        return _answer(self, environ, start_response)


if __name__ == "__main__":
    DomainDispatcherApplication.__call__ = _answer_in_turn  # type: ignore[method-assign]
    main()
