# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Where a node is reached from outside, by what the inventory says of it: for gateways and for who watches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Variables of a role are not known to plays without it; a test holds this equal to roles/sglang_server/defaults.
FRONT_PORT = 8000


def address(name: str, values: Mapping[str, Any]) -> str:
    return str(values.get("ansible_host") or name)


def place(host: str, port: Any) -> str:
    """HOST:PORT as a URL has it."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def front(name: str, values: Mapping[str, Any]) -> tuple[str, str]:
    """Scheme and HOST:PORT of a node's front."""
    scheme = "https" if values.get("sglang_server_front_certificate") else "http"
    return scheme, place(address(name, values), values.get("sglang_server_front_port") or FRONT_PORT)
