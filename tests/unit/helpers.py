"""What several unit tests need: a module run in this process, as Ansible's own unit tests do, and a small HTTP server."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args


def run_module(module: Any, capsys: pytest.CaptureFixture[str], check: bool = False, **args: Any) -> dict[str, Any]:
    """The module's result, whether it ended well or failed."""
    with patch_module_args({**args, "_ansible_check_mode": check}), pytest.raises(SystemExit):
        module.main()
    return json.loads(capsys.readouterr().out)


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a small HTTP server on this machine's loopback, which ends with the block."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
