# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Runs a benchmark client and watches the node meanwhile: a program for plain Python 3.9, started through sglang_job.

One JSON question on standard input:

`command`, `folder`, `result`, `timeout`   the client's command line, the folder that it runs in, the file that it writes its JSON
                                           line to, and the seconds after which it is killed with its whole process group
`url`, `ready_timeout`, `flush`            the server; seconds to wait for /health; whether to empty the prefix cache first
`prompts`, `output_len`                    requests, and tokens an answer where known: for progress
`telemetry`, `period_s`, `gpus`            whether and how often to look; which GPUs, as `nvidia-smi --id` takes them, or empty for
                                           those that the server uses
`concurrency`                              requests at once that the load holds in its middle; null where its arrivals decide

The client's environment, OPENAI_API_KEY in it, is this program's own. JSON lines on standard output: `{"progress": text}`, and at
the end `{"result": …}`, which is `{"failed": text}` where the client was not begun, and otherwise

`code`                  the client's exit status; null where it was killed at the timeout
`started`, `finished`   of the client, UTC. The second is the first and the time that went by, whatever the clock did
`seconds`               the client's whole time
`flush`                 null, or why the prefix cache was not flushed
`unhealthy`             empty, or why /health does not answer with 200 after the load
`cached`                `prompt_tokens` and `cached_tokens` by the engine's counters over the measured phase; null where it has none
`telemetry`             as $defs/telemetry in schemas/run.schema.json; null where it was not asked for

Beside it lie, in `folder`, output.txt (what the client said, without its bar) and telemetry.csv (every sample).

sglang_http.py, sglang_metrics.py and sglang_ports.py lie beside this file. The measured phase begins when tqdm's bar appears and
lasts the client's own `duration`. Durations are of the monotonic clock.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import json
import math
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from http.client import responses
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

if TYPE_CHECKING or __name__ != "__main__":
    from . import sglang_http, sglang_metrics, sglang_ports
else:
    # Started with -I, which keeps this file's own folder off the path.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import sglang_http
    import sglang_metrics
    import sglang_ports

HTTP_TIMEOUT = 30  # /health may take the 20 s that the engine gives itself
METRICS_TIMEOUT = 10
WHOSE_TIMEOUT = 5  # each of the two questions which GPUs are the server's
# The engine makes its page where it takes requests: looking costs it at most one part in so many, and is never rarer than this.
SHARE = 50
RAREST_S = 10.0
# Readings older than so many periods say nothing of now.
STALE = 2.5
# A load that holds its places: running and waiting requests are at least this share of them.
WHOLE_SHARE = 0.9
WHOLE_SAMPLES = 4

FIELDS = {
    "index": "index",
    "name": "name",
    "power.draw": "power_w",
    "power.limit": "limit_w",
    "utilization.gpu": "utilization_percent",
    "clocks.current.sm": "sm_clock_mhz",
    "temperature.gpu": "temperature_c",
    "memory.used": "memory_mib",
    "clocks_event_reasons.active": "reasons",
    "clocks_throttle_reasons.active": "reasons",
}
EVENT, THROTTLE = "clocks_event_reasons.active", "clocks_throttle_reasons.active"
SHOWN = [name for name in FIELDS if name not in (EVENT, THROTTLE)]
SPREADS = ("power_w", "utilization_percent", "sm_clock_mhz", "temperature_c", "memory_mib")
# nvml.h, nvmlClocksEventReasons. Bits 1 and 2 are idle and what somebody set on purpose: both are left out.
REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
QUIET_REASONS = 0x1 | 0x2

COLUMNS = {
    "t_s": "t",
    "gpu": "index",
    "power_w": "power_w",
    "limit_w": "limit_w",
    "utilization_percent": "utilization_percent",
    "sm_clock_mhz": "sm_clock_mhz",
    "temperature_c": "temperature_c",
    "gpu_memory_mib": "memory_mib",
    "throttle": "throttle",
    "cpu_percent": "cpu_percent",
    "host_memory_used_mib": "memory_used_mib",
    "running_requests": "running",
    "queued_requests": "queued",
    "token_usage": "token_usage",
    "accept_length": "accept_length",
    "retracted_requests": "retracted",
}

Gpu = dict[str, Any]


class Sample(NamedTuple):
    """One look at everything: `t` by the monotonic clock, GPUs by index, host and engine; empty what could not be read."""

    t: float
    gpus: dict[int, Gpu]
    host: dict[str, Optional[float]]
    engine: dict[str, float]


# --- reading -----------------------------------------------------------------------------------------------------------


def parse_smi(line: str, columns: Sequence[str]) -> Gpu:
    """One line of `nvidia-smi --query-gpu --format=csv`, by FIELDS' names; `[N/A]` is None. Empty where it is no such line.

    `columns` are nvidia-smi's own names in the order of the query. Units behind numbers are passed over.
    """
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != len(columns) or not parts[0]:
        return {}
    gpu: Gpu = {}
    for column, part in zip(columns, parts):
        name = FIELDS.get(column)
        if name == "name":
            gpu[name] = part
        elif name == "reasons":
            gpu[name] = int(part, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", part) else None
        elif name:
            found = re.match(r"-?\d+(\.\d+)?", part)
            gpu[name] = float(found[0]) if found else None
    if gpu.get("index") is None:
        return {}
    return {**gpu, "index": int(gpu["index"])}


def reasons(mask: Optional[int]) -> list[str]:
    """The reasons in a bitmask, without idle and application settings; a bit that has no name here by its number."""
    if not mask:
        return []
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
    return [REASONS.get(bit, f"bit_{bit:#x}") for bit in bits if not bit & QUIET_REASONS]


def parse_stat(text: str) -> tuple[int, int]:
    """Busy and all jiffies of /proc/stat's first line. Guests are in `user` already."""
    fields = [int(word) for word in text.split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def parse_meminfo(text: str) -> tuple[float, float]:
    """Used and all memory in MiB, from /proc/meminfo."""
    found = {
        name: int(kib) / 1024 for name, kib in re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", text, re.MULTILINE)
    }
    return found["MemTotal"] - found["MemAvailable"], found["MemTotal"]


def parse_bar(text: str) -> Optional[tuple[int, int]]:
    """Answered and all requests in the client's bar. Bars with a title, as of a download, are not it."""
    found = re.match(r"\s*\d+%\|[^|]*\|\s*(\d+)/(\d+) \[", text)
    return (int(found[1]), int(found[2])) if found else None


# --- words -------------------------------------------------------------------------------------------------------------


def duration_text(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def bar_text(done: int, total: int, seconds: float, output_len: Optional[float]) -> str:
    """How far a load is: `45 %, 812 output tok/s so far, 1 min 20 s left`."""
    if done >= total:
        return "100 %, the client works out its figures"
    if not done or seconds <= 0:
        return f"0 %, none of {total} requests answered yet"
    speed = f"{done * output_len / seconds:.0f} output tok/s" if output_len else f"{done / seconds:.2g} requests/s"
    left = duration_text(seconds / done * (total - done))
    return f"{100 * done // total} %, {speed} so far, {left} left"


# --- the summary -------------------------------------------------------------------------------------------------------


def rounded(value: Optional[float], digits: int = 3) -> Optional[float]:
    return None if value is None else round(value, digits)


def spread(values: Iterable[Optional[float]]) -> dict[str, Optional[float]]:
    """Mean, peak and least of what there is; all None where there is nothing."""
    some = [value for value in values if value is not None]
    if not some:
        return {"mean": None, "peak": None, "min": None}
    return {"mean": rounded(sum(some) / len(some)), "peak": rounded(max(some)), "min": rounded(min(some))}


def integral(points: Sequence[tuple[float, float]], start: float, end: float) -> Optional[float]:
    """By trapezoid from `start` to `end`, both between their neighbours or as their nearest point; None without two points."""
    if len(points) < 2 or end <= start:
        return None

    def at(t: float) -> float:
        for (t1, v1), (t2, v2) in zip(points, points[1:]):
            if t1 <= t <= t2:
                return v1 if t2 == t1 else v1 + (v2 - v1) * (t - t1) / (t2 - t1)
        return points[0][1] if t < points[0][0] else points[-1][1]

    line = [(start, at(start)), *(point for point in points if start < point[0] < end), (end, at(end))]
    return sum((t2 - t1) * (v1 + v2) / 2 for (t1, v1), (t2, v2) in zip(line, line[1:]))


def window(samples: Sequence[Sample], duration: float, concurrency: Optional[int]) -> tuple[str, list[Sample]]:
    """`steady` and the samples in which the load was whole; `whole` and those of the measured phase where that cannot be seen.

    `t` of the samples is from the client's first request, `duration` that of the measured phase.
    """
    measured = [sample for sample in samples if 0 <= sample.t <= duration]
    if concurrency:
        full = [
            sample
            for sample in measured
            if "running" in sample.engine
            and sample.engine["running"] + sample.engine.get("queued", 0) >= WHOLE_SHARE * concurrency
        ]
        if len(full) >= WHOLE_SAMPLES:
            return "steady", full
    return "whole", measured


def over(value: Optional[float], limit: Optional[float], digits: int = 3) -> Optional[float]:
    return round(value / limit, digits) if value is not None and limit else None


def last_value(samples: Sequence[Sample], index: int, name: str) -> Any:
    found = [sample.gpus[index].get(name) for sample in samples if index in sample.gpus]
    return next((value for value in reversed(found) if value is not None), None)


def gpu_summary(index: int, chosen: Sequence[Sample], samples: Sequence[Sample]) -> dict[str, Any]:
    """One GPU over the chosen samples; its name and limit as last seen in any."""
    rows = [sample.gpus[index] for sample in chosen if index in sample.gpus]
    masks = [row["reasons"] for row in rows if row.get("reasons") is not None]
    held: dict[str, int] = {}
    for name in (name for mask in masks for name in reasons(mask)):
        held[name] = held.get(name, 0) + 1
    spreads = {name: spread(row.get(name) for row in rows) for name in SPREADS}
    limit = last_value(samples, index, "limit_w")
    return {
        "index": index,
        "name": last_value(samples, index, "name") or "",
        **spreads,
        "limit_w": limit,
        "power_of_limit": over(spreads["power_w"]["mean"], limit),
        "throttle": {name: round(count / len(masks), 4) for name, count in sorted(held.items())},
    }


def together(sample: Sample, indexes: Sequence[int], name: str) -> Optional[float]:
    """The sum over all GPUs; None unless each has a value."""
    values: list[Any] = [sample.gpus.get(index, {}).get(name) for index in indexes]
    return sum(values) if values and None not in values else None


def summary(
    samples: Sequence[Sample],
    duration: float,
    period_s: float,
    concurrency: Optional[int] = None,
    output_tokens: Optional[float] = None,
    missing: Sequence[str] = (),
) -> dict[str, Any]:
    """Telemetry as $defs/telemetry of schemas/run.schema.json has it. `t` of the samples is from the client's first request."""
    kind, chosen = window(samples, duration, concurrency)
    indexes = sorted({index for sample in samples for index in sample.gpus})
    gpus = [gpu_summary(index, chosen, samples) for index in indexes]
    power = spread(together(sample, indexes, "power_w") for sample in chosen)
    limits = [gpu["limit_w"] for gpu in gpus]
    limit = sum(limits) if limits and None not in limits else None
    busy = [together(sample, indexes, "utilization_percent") for sample in chosen]
    points = [(sample.t, together(sample, indexes, "power_w")) for sample in samples]
    energy = integral([(t, watts) for t, watts in points if watts is not None], 0.0, duration)
    return {
        "period_s": period_s,
        "samples": len(chosen),
        "window": {
            "kind": kind,
            "from_s": round(chosen[0].t if kind == "steady" else 0.0, 3),
            "to_s": round(chosen[-1].t if kind == "steady" else duration, 3),
        },
        "gpus": gpus,
        "power_w": power,
        "limit_w": limit,
        "power_of_limit": over(power["mean"], limit),
        "utilization_percent": spread(None if value is None else value / len(indexes) for value in busy),
        "energy_j": rounded(energy),
        "output_tokens_per_j": over(output_tokens, energy, 6),
        "host": {
            "cpu_percent": spread(sample.host.get("cpu_percent") for sample in chosen),
            "memory_used_mib": spread(sample.host.get("memory_used_mib") for sample in chosen),
            "memory_total_mib": rounded(
                next((s.host.get("memory_total_mib") for s in reversed(samples) if s.host), None)
            ),
        },
        "engine": engine_summary(chosen),
        "missing": list(missing),
    }


def engine_summary(chosen: Sequence[Sample]) -> dict[str, Any]:
    """Empty where the engine said nothing. Without speculative decoding its accept length is 0, and left out."""
    seen = [sample.engine for sample in chosen if sample.engine]
    if not seen:
        return {}
    found: dict[str, Any] = {
        name: spread(state.get(name) for state in seen)
        for name in ("running", "queued", "token_usage")
        if any(name in state for state in seen)
    }
    accepted = [state["accept_length"] for state in seen if state.get("accept_length")]
    if accepted:
        found["accept_length"] = spread(accepted)
    if any("retracted" in state for state in seen):
        found["retracted"] = max(state.get("retracted", 0.0) for state in seen)
    return found


def cached(counted: Sequence[tuple[float, dict[str, float]]], start: float) -> Optional[dict[str, float]]:
    """Tokens of prompts and of the prefix cache from the last page before `start` (else the first) to the last page."""
    pages = [(t, state) for t, state in counted if "prompt_tokens" in state]
    if len(pages) < 2:
        return None
    first = next((state for t, state in reversed(pages) if t <= start), pages[0][1])
    last = pages[-1][1]
    found = {name: last[name] - first[name] for name in ("prompt_tokens", "cached_tokens")}
    return found if found["prompt_tokens"] > 0 <= found["cached_tokens"] else None


def rows(samples: Sequence[Sample]) -> Iterator[list[Any]]:
    """telemetry.csv: a row a GPU and sample, or one a sample where there is no GPU. Empty fields could not be read."""
    yield list(COLUMNS)
    for sample in samples:
        for gpu in [sample.gpus[index] for index in sorted(sample.gpus)] or [{}]:
            seen = {**sample.host, **sample.engine, **gpu, "t": round(sample.t, 3)}
            seen["throttle"] = "+".join(reasons(gpu.get("reasons")))
            yield ["" if seen.get(name) is None else seen[name] for name in COLUMNS.values()]


# --- the server's GPUs -------------------------------------------------------------------------------------------------


class Unknown(Exception):
    """Why it cannot be told which GPUs the server uses."""


def local(host: str) -> bool:
    """Whether an address of this name is one of this node's, which alone can be bound."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as one:
                one.bind(address)
                return True
    return False


def listening(url: str) -> set[int]:
    """The processes that listen on the url's port. Unknown where it is no port of this node, or none may be looked at."""
    parts = urllib.parse.urlsplit(url)
    if not local(parts.hostname or ""):
        raise Unknown(f"{url} is no address of this node")
    port = sglang_http.port_of(url)
    found = {process.pid for process in sglang_ports.listeners(port)}
    if not found:
        raise Unknown(f"no process that this user may look at listens on port {port}")
    return found


def kin(pid: int, look: Callable[[int], int]) -> int:
    """A process's group or session; 0 where it is gone, and where it is not of this container."""
    with contextlib.suppress(OSError):
        return look(pid)
    return 0


def related(pids: Iterable[int], servers: set[int]) -> set[int]:
    """Those of the processes that belong to the servers: their descendants, else their group's, else their session's.

    Two servers that one script started share group and session, so these count only where there is no descendant.
    """
    some = set(pids)
    found = {pid for pid in some if servers & {pid, *sglang_ports.describe(pid).ancestors}}
    for look in (os.getpgid, os.getsid):
        theirs = {kin(pid, look) for pid in servers} - {0}
        found = found or {pid for pid in some if kin(pid, look) in theirs}
    return found


def parse_pairs(text: str) -> list[tuple[str, str]]:
    """Rows of two fields of `nvidia-smi --format=csv,noheader`; other lines are left out."""
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    return [(row[0], row[1]) for row in rows if len(row) == 2]


def server_gpus(url: str, ask: Callable[[str], str]) -> list[int]:
    """Indexes of the GPUs on which the server behind the url computes. `ask` gives nvidia-smi's rows for a query.

    Raises Unknown with the reason where that cannot be told.
    """
    servers = listening(url)
    apps = [(uuid, int(pid)) for uuid, pid in parse_pairs(ask("--query-compute-apps=gpu_uuid,pid")) if pid.isdigit()]
    pids = related({pid for _, pid in apps}, servers)
    uuids = {uuid for uuid, pid in apps if pid in pids}
    found = (
        sorted(int(index) for index, uuid in parse_pairs(ask("--query-gpu=index,uuid")) if uuid in uuids)
        if uuids
        else []
    )
    if not found:
        raise Unknown("nvidia-smi names none of the server's processes, as in a container")
    return found


# --- watchers ----------------------------------------------------------------------------------------------------------


def said(answer: sglang_http.Answer) -> str:
    """An answer that is not what was hoped for, in words."""
    return f"HTTP {answer.status} {responses.get(answer.status, '')}".rstrip() if answer.status else answer.text


class Gpus(threading.Thread):
    """nvidia-smi's own loop, read in a thread: it may be missing, fail, or hang."""

    def __init__(self, period_s: float, ids: str, url: str) -> None:
        super().__init__(daemon=True)
        self.period_s, self.ids, self.url = period_s, ids, url
        self.unknown = ""
        self.latest: dict[int, tuple[float, Gpu]] = {}
        self.seen: set[str] = set()
        self.read_at: Optional[float] = None
        self.why = ""
        self.ending = False
        self.process: Optional[subprocess.Popen[str]] = None

    def run(self) -> None:
        program = shutil.which("nvidia-smi")
        if not program:
            self.why = "there is no nvidia-smi on this node"
            return
        if not self.ids:
            try:
                found = server_gpus(self.url, lambda query: self.ask([program, query, "--format=csv,noheader"]))
                self.ids = ",".join(str(index) for index in found)
            except Unknown as error:
                self.unknown = str(error)
        if self.ending:
            return
        # Older drivers know the reasons by their older name.
        for last in (EVENT, THROTTLE):
            columns = [*SHOWN, last]
            argv = [program, f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"]
            argv += ["-lms", str(max(20, round(1000 * self.period_s))), *([f"--id={self.ids}"] if self.ids else [])]
            if not self.follow(argv, columns):
                return

    def begin(self, argv: list[str], errors: int) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
        )
        if self.ending:
            self.process.kill()
        return self.process

    def ask(self, argv: list[str]) -> str:
        """What nvidia-smi prints. Unknown where it does not end in time; then it is not waited for, as it may hang for ever."""
        try:
            process = self.begin(argv, subprocess.DEVNULL)
        except OSError as error:
            raise Unknown(f"nvidia-smi cannot be run: {error.strerror}") from None
        try:
            return process.communicate(timeout=WHOSE_TIMEOUT)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            raise Unknown(f"nvidia-smi did not answer within {WHOSE_TIMEOUT} s") from None

    def follow(self, argv: list[str], columns: list[str]) -> bool:
        """Read until it ends. Whether the query's last field is what it did not know."""
        try:
            process = self.begin(argv, subprocess.STDOUT)
        except OSError as error:
            self.why = f"nvidia-smi cannot be run: {error.strerror}"
            return False
        words = ""
        assert process.stdout
        for line in process.stdout:
            gpu = parse_smi(line, columns)
            if gpu:
                now = time.monotonic()
                self.latest[gpu["index"]] = (now, gpu)
                self.read_at = now
                self.seen |= {name for name, value in gpu.items() if value is not None}
            elif "is not a valid field" in line and columns[-1] in line and columns[-1] == EVENT:
                process.wait()
                return True
            elif line.strip():
                words = line.strip()[:200]
        code = process.wait()
        if not self.ending:
            self.why = f"nvidia-smi ended with status {code}{': ' + words if words else ''}"
        return False

    def now(self, at: float) -> dict[int, Gpu]:
        fresh = max(1.0, STALE * self.period_s)
        return {index: gpu for index, (t, gpu) in list(self.latest.items()) if at - t <= fresh}

    def close(self) -> list[str]:
        """End it, and say what was missing."""
        self.ending = True
        # Before it is killed: a question that ends by it is followed by the next command's first line.
        read_at = self.read_at
        hung = self.is_alive() and (read_at is None or time.monotonic() - read_at > max(3.0, 5 * self.period_s))
        if self.process and self.process.poll() is None:
            self.process.kill()
        self.join(1.0)
        if hung:
            self.why = "nvidia-smi hangs: " + ("it said nothing" if read_at is None else "it fell silent in between")
        if self.why:
            return [f"GPUs: {self.why}"]
        if not self.latest:
            return []
        missing = []
        if self.unknown:
            missing.append(
                f"GPUs: which of them the server uses cannot be told ({self.unknown}): GPUs that are not the server's may be among "
                "them"
            )
        # A field that no GPU has.
        fields = [column for column in [*SHOWN, EVENT] if FIELDS[column] not in self.seen]
        return [*missing, f"GPUs: nvidia-smi gives no {', '.join(fields)} here"] if fields else missing


class Engine(threading.Thread):
    """The engine's /metrics, asked so seldom that the engine does not feel it."""

    def __init__(self, url: str, key: str, period_s: float) -> None:
        super().__init__(daemon=True)
        self.url, self.key, self.period_s = f"{url}/metrics", key, period_s
        self.pause_s = period_s
        self.latest: tuple[float, dict[str, float]] = (0.0, {})
        self.counted: list[tuple[float, dict[str, float]]] = []
        self.why = ""
        self.wake, self.ending = threading.Event(), threading.Event()

    def run(self) -> None:
        while not self.ending.is_set() and self.look():
            self.wake.wait(self.pause_s)
            self.wake.clear()

    def look(self) -> bool:
        """One page. Whether it is worth asking again."""
        began = time.monotonic()
        answer = sglang_http.ask(self.url, METRICS_TIMEOUT, self.key)
        now = time.monotonic()
        self.pause_s = max(self.period_s, min(RAREST_S, SHARE * (now - began)))
        state = sglang_metrics.engine_state(answer.text) if answer.status == 200 else {}
        if state:
            self.latest = (now, state)
            self.counted.append((now, state))
        elif not self.counted:
            how = "holds nothing of SGLang" if answer.status == 200 else f"does not answer ({said(answer)})"
            self.why = f"engine: {self.url} {how}; it is there with `enable-metrics: true` in sglang_server_args"
        # A page may be without figures before the first batch; what is refused stays refused.
        return answer.status in (0, 200) or bool(self.counted)

    def now(self, at: float) -> dict[str, float]:
        t, state = self.latest
        return state if state and at - t <= max(1.0, STALE * self.pause_s) else {}

    def close(self) -> list[str]:
        """A last page, for its counters, unless there never was one or one is on its way and does not come."""
        self.ending.set()
        self.wake.set()
        self.join(METRICS_TIMEOUT + 1.0)
        if self.counted and not self.is_alive():
            self.look()
        return [] if self.counted else [self.why or f"engine: {self.url} did not answer in time"]


class Host:
    """CPU and memory, from /proc."""

    def __init__(self) -> None:
        self.before: Optional[tuple[int, int]] = None

    def now(self) -> dict[str, Optional[float]]:
        try:
            with open("/proc/stat", encoding="ascii") as stream:
                busy, total = parse_stat(stream.read())
            with open("/proc/meminfo", encoding="ascii") as stream:
                used_mib, total_mib = parse_meminfo(stream.read())
        except (OSError, ValueError, KeyError, IndexError):
            return {}
        percent = None
        if self.before and total > self.before[1]:
            percent = round(100 * (busy - self.before[0]) / (total - self.before[1]), 2)
        self.before = (busy, total)
        return {"cpu_percent": percent, "memory_used_mib": round(used_mib, 1), "memory_total_mib": round(total_mib, 1)}


class Watch:
    """Everything that is looked at beside the client, a sample a period."""

    def __init__(self, question: dict[str, Any], key: str) -> None:
        self.period_s = question["period_s"]
        self.gpus = Gpus(self.period_s, question["gpus"], question["url"])
        self.engine = Engine(question["url"], key, self.period_s)
        self.host = Host()
        self.samples: list[Sample] = []
        self.missing: list[str] = []
        self.next = time.monotonic()
        self.gpus.start()
        self.engine.start()

    def tick(self) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        # From now on, not from the last: a machine that slept does not catch up.
        self.next = now + self.period_s
        self.samples.append(Sample(now, self.gpus.now(now), self.host.now(), self.engine.now(now)))

    def close(self) -> None:
        self.next = 0.0
        self.tick()
        self.missing = self.gpus.close() + self.engine.close()


# --- the client --------------------------------------------------------------------------------------------------------


class Output:
    """The client's output as it comes: lines into a log, the bar into counts, what it is at into a word."""

    def __init__(self, path: str) -> None:
        self.log = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by close)
        self.tail = b""
        self.stage = "the client starts"
        self.warm = False
        self.first: Optional[float] = None
        self.last: Optional[float] = None
        self.done, self.total = 0, 0

    def feed(self, data: bytes) -> None:
        *whole, self.tail = re.split(rb"[\r\n]", self.tail + data)
        for piece in whole:
            self.take(piece.decode("utf-8", "replace"))
        # tqdm ends a bar with the carriage return of the next one.
        self.bar(self.tail.decode("utf-8", "replace"))

    def take(self, text: str) -> None:
        if self.bar(text) or not text.strip():
            return
        self.log.write(text + "\n")
        if text.startswith("Starting warmup"):
            self.stage = "warm-up"
        self.warm = self.warm or text.startswith("Warmup completed")

    def bar(self, text: str) -> bool:
        found = parse_bar(text)
        if not found:
            return False
        now = time.monotonic()
        if self.first is None:
            self.first = now
        if found != (self.done, self.total):
            self.last = now
        self.done, self.total = found
        return True

    def progress(self, output_len: Optional[float]) -> str:
        if self.first is None:
            return self.stage
        return bar_text(self.done, self.total, time.monotonic() - self.first, output_len)

    def close(self) -> None:
        self.take(self.tail.decode("utf-8", "replace"))
        self.log.close()


class Speaker:
    """Progress, a line when it changes and at most one a second, since it is read again and again."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write, self.before, self.at = write, "", -math.inf

    def say(self, text: str) -> None:
        now = time.monotonic()
        if text != self.before and now - self.at >= 1.0:
            self.write(json.dumps({"progress": text}))
            self.before, self.at = text, now


def await_ready(url: str, key: str, seconds: float, speaker: Speaker) -> str:
    """Wait for /health. Empty, or why the server is not ready; what will not change by itself ends it at once."""
    until = time.monotonic() + seconds
    while True:
        answer = sglang_http.ask(f"{url}/health", HTTP_TIMEOUT, key)
        if answer.status == 200:
            return ""
        if 400 <= answer.status < 500 or time.monotonic() >= until:
            return said(answer)
        speaker.say(f"waits for {url}/health ({said(answer)})")
        time.sleep(min(1.0, max(0.0, until - time.monotonic())))


def client(question: dict[str, Any], speaker: Speaker, output: Output, watch: Callable[[], Optional[Watch]]) -> Any:
    """Run the client to its end. Its exit status, None when it was killed at the timeout, and what watched it."""
    process = subprocess.Popen(
        question["command"],
        cwd=question["folder"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A group of its own in the job's session: the timeout ends the group, and the job's end the session. No thread runs yet.
        preexec_fn=os.setpgrp,  # noqa: PLW1509
    )
    beside = watch()
    until = time.monotonic() + question["timeout"]
    assert process.stdout
    os.set_blocking(process.stdout.fileno(), False)

    def read() -> bool:
        """Whether there may be more."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(process.stdout.fileno(), 1 << 16)  # type: ignore[union-attr]
            output.feed(data)
            return bool(data)
        return False

    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while process.poll() is None and time.monotonic() < until:
            pause = min(0.2, beside.next - time.monotonic()) if beside else 0.2
            if selector.select(max(0.0, pause)):
                warm = output.warm
                if not read():
                    selector.unregister(process.stdout)
                    selector.select(0.05)
                if beside and output.warm and not warm:
                    # The counters between warm-up and the first request.
                    beside.engine.wake.set()
            speaker.say(output.progress(question["output_len"]))
            if beside:
                beside.tick()
        code = process.poll()
        if code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        while read():
            pass
    return code, beside


def figures(path: str) -> dict[str, Any]:
    """`duration` and `total_output_tokens` of the client's JSON line, as far as they are finite numbers."""
    try:
        with open(path, encoding="utf-8") as stream:
            line = json.loads([text for text in stream if text.strip()][-1])
        found = {name: line.get(name) for name in ("duration", "total_output_tokens")}
    except (OSError, ValueError, IndexError, AttributeError):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, (int, float)) and math.isfinite(v)}


def utc(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def run(question: dict[str, Any], write: Callable[[str], None]) -> dict[str, Any]:
    """All of it; the result."""
    speaker, url = Speaker(write), question["url"]
    key = os.environ.get("OPENAI_API_KEY", "")
    why = await_ready(url, key, question["ready_timeout"], speaker)
    if why:
        return {
            "failed": f"{url}/health does not answer with 200 ({why}). Start the server, or correct url, first.",
            "server_gone": True,
        }
    flush = None
    if question["flush"]:
        # 0.5.9's client flushes without looking at the answer.
        answer = sglang_http.ask(f"{url}/flush_cache", HTTP_TIMEOUT, key, method="POST")
        flush = None if answer.status == 200 else f"{url}/flush_cache answers {said(answer)}"
    output = Output(os.path.join(question["folder"], "output.txt"))
    began, wall = time.monotonic(), datetime.datetime.now(datetime.timezone.utc)
    try:
        code, watch = client(question, speaker, output, lambda: Watch(question, key) if question["telemetry"] else None)
    except OSError as error:
        return {"failed": f"{question['command'][0]} cannot be run: {error.strerror}."}
    finally:
        output.close()
    ended = time.monotonic()
    result: dict[str, Any] = {
        "code": code,
        "started": utc(wall),
        "finished": utc(wall + datetime.timedelta(seconds=ended - began)),
        "seconds": round(ended - began, 3),
        "flush": flush,
        "cached": None,
        "telemetry": None,
    }
    if watch:
        result.update(judged(question, watch, output, began, ended))
    answer = sglang_http.ask(f"{url}/health", HTTP_TIMEOUT, key)
    return {**result, "unhealthy": "" if answer.status == 200 else said(answer)}


def judged(question: dict[str, Any], watch: Watch, output: Output, began: float, ended: float) -> dict[str, Any]:
    """The summary of what was watched, and the counters; every sample goes into telemetry.csv."""
    watch.close()
    told = figures(question["result"])
    start = output.first if output.first is not None else began
    end = output.last if output.first is not None and output.last else ended
    duration = float(told.get("duration", end - start))
    missing = list(watch.missing)
    if output.first is None:
        missing.append("the client's bar was not seen: figures are from its start on")
    samples = [sample._replace(t=sample.t - start) for sample in watch.samples]
    try:
        with open(os.path.join(question["folder"], "telemetry.csv"), "w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows(samples))
    except OSError as error:
        missing.append(f"telemetry.csv could not be written: {error.strerror}")
    return {
        "telemetry": summary(
            samples,
            duration,
            question["period_s"],
            question["concurrency"],
            told.get("total_output_tokens"),
            missing,
        ),
        "cached": cached(watch.engine.counted, start),
    }


def main() -> None:
    def write(text: str) -> None:
        print(text, flush=True)

    write(json.dumps({"result": run(json.load(sys.stdin), write)}))


if __name__ == "__main__":
    main()
