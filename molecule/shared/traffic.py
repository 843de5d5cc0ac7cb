"""Clients of a server under test: what became of each request, and how long nobody was answered."""

from __future__ import annotations

import dataclasses
import http.client
import json
import queue
import threading
import time
from typing import Any, Protocol


class Door(Protocol):
    """Where requests go in: a front, a gateway."""

    address: str
    port: int
    keys: list[str]


@dataclasses.dataclass
class Answer:
    """What became of one request: answered, refused (told to come back), unreachable (nobody listened), or lost."""

    kind: str
    at: float
    detail: str = ""


def ask(door: Door, tokens: int, stream: bool = False, timeout: float = 90, key: str = "") -> Answer:
    """One request through the front, on a connection of its own."""
    body = {"text": "def add(a, b):", "stream": stream}
    body["sampling_params"] = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key or door.keys[0]}"}
    taken = False
    connection = http.client.HTTPConnection(door.address, door.port, timeout=timeout)
    try:
        try:
            connection.connect()
        except OSError as error:
            return Answer("unreachable", time.monotonic(), str(error))
        connection.request("POST", "/generate", json.dumps(body), headers)
        taken = True
        reply = connection.getresponse()
        text = reply.read().decode(errors="replace")
        if reply.status == 503 and reply.getheader("Retry-After"):
            return Answer("refused", time.monotonic())
        if reply.status != 200:
            return Answer("lost", time.monotonic(), f"HTTP {reply.status}: {text[:200]}")
        last = [line[6:] for line in text.splitlines() if line.startswith("data: {")][-1:] if stream else [text]
        counted = json.loads(last[0])["meta_info"]["completion_tokens"] if last else 0
        whole = counted == tokens and (not stream or "data: [DONE]" in text)
        return Answer("answered" if whole else "lost", time.monotonic(), f"{counted} of {tokens} tokens")
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        return Answer("lost" if taken else "unreachable", time.monotonic(), repr(error)[:200])
    finally:
        connection.close()


class Traffic:
    """Clients beside a case: a short request a second, and long streams with a pause between two, as the cores are few.

    `busy` clients have a stream under way at all times.
    """

    def __init__(self, door: Door, busy: bool = False) -> None:
        self.door = door
        self.pause = 0.0 if busy else 3.0
        self.answers: queue.Queue[tuple[str, Answer]] = queue.Queue()
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []
        self.began = time.monotonic()

    def __enter__(self) -> Traffic:
        for work in (self._short, self._long):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            self.threads.append(thread)
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(100)

    def _short(self) -> None:
        asked = []
        while not self.stop.wait(1.0):
            thread = threading.Thread(target=self._note, args=("short", 4, False), daemon=True)
            thread.start()
            asked.append(thread)
        for thread in asked:
            thread.join(100)

    def _long(self) -> None:
        while not self.stop.wait(self.pause):
            if self._note("long", 200, True).kind != "answered":
                self.stop.wait(0.5)

    def _note(self, name: str, tokens: int, stream: bool) -> Answer:
        answer = ask(self.door, tokens, stream)
        self.answers.put((name, answer))
        return answer

    def result(self) -> dict[str, Any]:
        """Counts, and the longest time without an answer."""
        found = list(self.answers.queue)
        times = sorted(a.at for _, a in found if a.kind == "answered")
        points = [self.began, *times]
        gaps = [later - earlier for earlier, later in zip(points, points[1:])]
        count = {kind: sum(a.kind == kind for _, a in found) for kind in ("answered", "refused", "unreachable", "lost")}
        return {
            **count,
            "gap_s": max(gaps, default=0.0),
            "details": [a.detail for _, a in found if a.kind == "lost"][:5],
        }
