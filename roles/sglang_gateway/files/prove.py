#!/usr/bin/env python3
"""Tell whether a gateway does its work: 0 when it does, otherwise 1 and the reason in the last line.

Written by sglang-rtxpro. Runs as root with the host's own Python, for sglang_companion, which puts back what was when this says no.
--router asks the router itself, with the key of the workers; --front asks what clients reach, without a key.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request

# Seconds for an answer: the engine makes a token before it says that it is well, and a request may wait in a queue.
HEALTH, REQUEST = 15.0, 120.0
STEP = 0.25


class Refused(Exception):
    """What the gateway does not do."""


class Silent(Exception):
    """Nobody answers; `late` is whether somebody took the request all the same."""

    def __init__(self, reason: str, late: bool = False) -> None:
        super().__init__(reason)
        self.late = late


def ask(
    url: str, key: str = "", body: dict | None = None, context: ssl.SSLContext | None = None, patience: float = HEALTH
) -> tuple:
    """Status and text."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, data=json.dumps(body).encode() if body else None, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=patience) as answer:
            return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode("utf-8", "replace")
    except (TimeoutError, socket.timeout):  # two kinds before Python 3.10
        raise Silent(f"no answer within {patience:.0f} s", late=True) from None
    except (OSError, ValueError) as error:
        raise Silent(str(getattr(error, "reason", error))) from None


def well(url: str, context: ssl.SSLContext) -> bool:
    """Whether a worker's front and engine say that they are, which needs no key."""
    try:
        return ask(url + "/health", context=context)[0] == 200
    except Silent:
        return False


def answering(urls: list[str], context: ssl.SSLContext) -> list[str]:
    with concurrent.futures.ThreadPoolExecutor(len(urls) or 1) as pool:
        return sorted(url for url, up in zip(urls, pool.map(lambda url: well(url, context), urls)) if up)


def healthy(router: str, key: str) -> set[str]:
    status, text = ask(router + "/workers", key)
    if status != 200:
        raise Refused(f"the router says HTTP {status} when it is asked for its workers")
    return {worker["url"].rstrip("/") for worker in json.loads(text)["workers"] if worker["is_healthy"]}


def prove_router(router: str, folder: str, seconds: float, ca: str | None) -> str:
    key = ""
    path = os.path.join(folder, "worker.key")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as stream:
            key = stream.read().strip()
    with open(os.path.join(folder, "workers.json"), encoding="utf-8") as stream:
        workers = json.load(stream)["workers"]
    until = time.monotonic() + seconds
    status, _ = ask(router + "/health")
    if status != 200:
        raise Refused(f"the router says HTTP {status} for /health")
    up = answering(workers, ssl.create_default_context(cafile=ca))
    while True:
        missing = sorted(set(up) - healthy(router, key))
        if not missing:
            break
        if time.monotonic() > until:
            raise Refused(
                f"after {seconds:.0f} s the router does not have {', '.join(missing)}, which answer when they are asked from here"
            )
        time.sleep(STEP)
    if not up:
        return "no worker answers; the router waits for them"
    return one_request(router, until)


def one_request(router: str, until: float) -> str:
    body = {"text": "1 2 3", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    while True:
        try:
            status, text = ask(router + "/generate", body=body, patience=REQUEST)
        except Silent as error:
            if error.late:
                return "the workers are so busy that a request still waits"
            raise
        if status == 200 and "text" in json.loads(text):
            return "a request was answered"
        # Busy or just being drained; anything else will not pass.
        if status not in (429, 503) or time.monotonic() > until:
            raise Refused(f"a request through the router is answered with HTTP {status}: {text[:200]}")
        time.sleep(1)


def prove_front(front: str) -> str:
    context = ssl.create_default_context()
    # It is asked at the host's own address, which the certificate need not name.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    status, text = ask(front + "/health", context=context)
    if status != 200:
        raise Refused(f"the front says HTTP {status} for /health: {text[:200]}")
    return "the front passes requests on"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--router", default="")
    parser.add_argument("--folder", default="")
    parser.add_argument("--front", default="")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--ca")
    args = parser.parse_args()
    try:
        print(
            prove_front(args.front)
            if args.front
            else prove_router(args.router.rstrip("/"), args.folder, args.seconds, args.ca)
        )
    except (Refused, Silent, OSError, ValueError, KeyError, TypeError) as error:
        print(error if isinstance(error, (Refused, Silent)) else f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
