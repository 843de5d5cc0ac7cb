#!/usr/bin/env python3
"""What the router itself costs: its CPU time at rest, a request and a streamed token, before many workers.

    RELEASE/bin/python tests/bench/router.py WORKERS

Runs with the Python of a router's release, on loopback alone. The workers are stand-ins that answer at once, since an engine would
take a thousand times more than the router: a port each, one process. Prints JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from aiohttp import ClientSession, TCPConnector, web

TOKENS = 200
PROMPT = "def add(a, b): " * 100  # some 500 tokens
# As the role sglang_gateway starts it.
ARGUMENTS = [
    "--policy",
    "cache_aware",
    "--health-check-interval-secs",
    "2",
    "--health-check-timeout-secs",
    "10",
    "--disable-circuit-breaker",
]
ARGUMENTS += ["--history-backend", "none", "--log-level", "warn"]


async def answer(request: web.Request) -> web.StreamResponse:
    """What an engine says: of itself, or tokens."""
    if request.method != "POST":
        return web.json_response(
            {"model_path": "a", "served_model_name": "a", "version": "0", "tp_size": 1, "dp_size": 1}
        )
    told = await request.json()
    if not told.get("stream"):
        return web.json_response({"text": "a", "meta_info": {"completion_tokens": 1}})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(TOKENS):
        await response.write(
            b"data: "
            + json.dumps({"text": "a" * number, "meta_info": {"completion_tokens": number}}).encode()
            + b"\n\n"
        )
        await asyncio.sleep(0.002)  # so that each goes by itself
    await response.write(b"data: [DONE]\n\n")
    return response


def cpu(process: int) -> float:
    """Seconds that it has used."""
    with open(f"/proc/{process}/stat", encoding="utf-8") as stream:
        fields = stream.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def memory(process: int) -> float:
    """MB of it that are in memory."""
    with open(f"/proc/{process}/status", encoding="utf-8") as stream:
        return next(int(line.split()[1]) / 1024 for line in stream if line.startswith("VmRSS"))


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


async def healthy(session: ClientSession, url: str) -> int:
    with contextlib.suppress(OSError, ValueError, KeyError, asyncio.TimeoutError):
        async with session.get(f"{url}/workers") as told:
            return sum(one["is_healthy"] for one in (await told.json())["workers"])
    return 0


async def ask(session: ClientSession, url: str, stream: bool) -> None:
    body = {"text": PROMPT, "stream": stream, "sampling_params": {"max_new_tokens": TOKENS}}
    async with session.post(f"{url}/generate", json=body) as told:
        text = await told.text()
        if told.status != 200 or (stream and text.count("data: {") != TOKENS):
            raise SystemExit(f"router.py: error: HTTP {told.status} instead of an answer: {text[:200]}")


async def load(session: ClientSession, url: str, count: int, stream: bool, at_once: int = 16) -> None:
    gate = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with gate:
            await ask(session, url, stream)

    await asyncio.gather(*(one() for _ in range(count)))


async def measure(workers: int) -> dict[str, Any]:
    # The router tries HTTP/2 on each worker first.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    runner = web.AppRunner(web.Application())
    runner.app.router.add_route("*", "/{path:.*}", answer)
    await runner.setup()
    port, metrics, *ports = free_ports(workers + 2)
    for one in ports:
        await web.TCPSite(runner, "127.0.0.1", one).start()
    url = f"http://127.0.0.1:{port}"
    argv = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port), *ARGUMENTS]
    argv += ["--prometheus-port", str(metrics), "--worker-urls", *(f"http://127.0.0.1:{one}" for one in ports)]
    router = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        async with ClientSession(connector=TCPConnector(limit=0)) as session:
            until = time.monotonic() + 120
            while await healthy(session, url) < workers:
                if router.poll() is not None or time.monotonic() > until:
                    raise SystemExit(
                        f"router.py: error: it has {await healthy(session, url)} healthy workers of {workers}"
                    )
                await asyncio.sleep(0.5)
            await load(session, url, 200, stream=False)
            began, used = time.monotonic(), cpu(router.pid)
            await asyncio.sleep(20)
            rest = (cpu(router.pid) - used) / (time.monotonic() - began)
            used = cpu(router.pid)
            await load(session, url, 4000, stream=False)
            a_request = (cpu(router.pid) - used) / 4000
            used = cpu(router.pid)
            await load(session, url, 100, stream=True)
            a_token = (cpu(router.pid) - used - 100 * a_request) / (100 * TOKENS)
            return {
                "workers": workers, "cpu_at_rest": round(rest, 4), "cpu_s_a_request": round(a_request, 6),
                "cpu_s_a_token": round(a_token, 7), "memory_mb": round(memory(router.pid)),
            }  # fmt: skip
    finally:
        router.send_signal(signal.SIGTERM)
        router.wait(20)
        await runner.cleanup()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(int(sys.argv[1])))))
