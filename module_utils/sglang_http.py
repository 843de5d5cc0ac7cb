# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""A question over HTTP to an engine, a front or a router, whatever comes back. Plain Python 3.9."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, NamedTuple, Optional

LARGEST = 16 << 20  # bytes of an answer that are read: a page of metrics has some MiB at the most


class Answer(NamedTuple):
    """An HTTP answer; status 0 when there was none, `text` then says why."""

    status: int
    text: str


def ask(
    url: str,
    timeout: float,
    key: Optional[str] = None,
    body: Optional[Dict[str, Any]] = None,
    method: Optional[str] = None,
    context: Optional[ssl.SSLContext] = None,
) -> Answer:
    """GET a URL, or POST a body to it as JSON, within a timeout in seconds.

    Never through a proxy: what the environment names has no business between a node and its own servers.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    handlers: List[Any] = [urllib.request.ProxyHandler({})]
    handlers += [urllib.request.HTTPSHandler(context=context)] if context else []
    try:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            reply = urllib.request.build_opener(*handlers).open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            reply = error
        with reply:
            return Answer(reply.getcode(), reply.read(LARGEST).decode("utf-8", "replace"))
    except Exception as error:  # http.client raises its own kinds for what is no HTTP at all
        reason = getattr(error, "reason", None) or error
        return Answer(0, str(getattr(reason, "strerror", None) or reason) or type(error).__name__)


def port_of(url: str) -> int:
    """The port that a URL names, or its scheme's."""
    parts = urllib.parse.urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)
