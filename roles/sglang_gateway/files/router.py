#!/usr/bin/env python3
"""Start SGLang's router with what must not stand in a command line; `router.py tell URL` names its workers to it.

Written by sglang-rtxpro. Runs with the Python of the router's release, in the unit. The key of the workers comes as systemd's
credential and is put into this process's own list of words, after the command line was made:
ps does not show it, nor does the unit.

It is not the router's --api-key: requests would have to carry it, and the router passes what they carry on to a worker beside the
worker's own key (0.3.2), which nginx refuses as two. So requests come without one, on loopback, the key guards the list of workers,
and the workers are told with it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
KEY = os.path.join(os.environ.get("CREDENTIALS_DIRECTORY", "/nowhere"), "worker-key")
# What the router was told. The module sglang_gateway notes here what it tells it later.
TOLD = os.path.join(os.environ.get("RUNTIME_DIRECTORY", "/nowhere"), "told.json")
# Seconds until the router must listen.
START = 60.0


def key() -> str:
    # systemd 252 gives ExecStartPost no credentials: it runs as root and reads the file itself.
    for path in (KEY, os.path.join(HERE, "worker.key")):
        if os.path.exists(path):
            with open(path, encoding="utf-8") as stream:
                return stream.read().strip()
    return ""


def ask(url: str, body: dict | None = None) -> None:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key()}"} if body and key() else {})}
    request = urllib.request.Request(url, data=json.dumps(body).encode() if body else None, headers=headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        answer.read()


def tell(router: str) -> None:
    until = time.monotonic() + START
    while True:
        try:
            ask(router + "/health")
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
    with open(os.path.join(HERE, "workers.json"), encoding="utf-8") as stream:
        workers = json.load(stream)["workers"]
    for url in workers:
        ask(router + "/workers", {"url": url, **({"api_key": key()} if key() else {})})
    with open(TOLD, "w", encoding="utf-8") as stream:
        json.dump({"workers": workers}, stream)


if __name__ == "__main__":
    if sys.argv[1:2] == ["tell"]:
        try:
            tell(sys.argv[2])
        except OSError as error:
            sys.exit(f"router.py: error: the router does not take its workers: {error}")
    else:
        sys.argv += ["--control-plane-api-keys", f"gateway:gateway:admin:{key()}"] if key() else []
        from sglang_router.launch_router import main

        main()
