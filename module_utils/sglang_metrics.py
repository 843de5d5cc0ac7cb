# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""What an engine says of itself on its Prometheus page, for whoever asks: benchmark, doctor, status. Plain Python 3.9."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator

GAUGES = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "queued",
    "sglang:token_usage": "token_usage",
    "sglang:spec_accept_length": "accept_length",
    "sglang:cache_hit_rate": "cache_hit_rate",
    "sglang:num_retracted_reqs": "retracted",
}
COUNTERS = {"sglang:prompt_tokens_total": "prompt_tokens", "sglang:cached_tokens_total": "cached_tokens"}
MEANS = {"accept_length", "cache_hit_rate"}


def parse_page(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of those lines of a Prometheus page that are wanted here. NaN is passed over."""
    for line in page.splitlines():
        if not line.startswith("sglang:"):
            continue
        name = re.split(r"[{ ]", line, maxsplit=1)[0]
        if name not in GAUGES and name not in COUNTERS:
            continue
        labels, _, value = line[len(name) :].rpartition(" ")
        with contextlib.suppress(ValueError):
            number = float(value)
            if math.isfinite(number):
                yield name, dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)), number


def engine_state(page: str) -> dict[str, float]:
    """What a page says of the engine now, as far as it says it.

    `running`, `queued` and `retracted` are requests, `token_usage` and `cache_hit_rate` shares from 0 to 1, `accept_length` tokens
    a step. Ranks of one copy say the same, so one of them counts; copies (dp_rank) add up, but for the fullest KV cache and means.
    Where requests have priorities, the total has an empty one. `cached_tokens` begins to exist with its first hit.
    """
    by_copy: dict[str, dict[str, float]] = {}
    counted: dict[str, float] = {}
    for name, labels, value in parse_page(page):
        if name in COUNTERS:
            counted[COUNTERS[name]] = counted.get(COUNTERS[name], 0.0) + value
        elif not labels.get("priority"):
            copies = by_copy.setdefault(GAUGES[name], {})
            copy = labels.get("dp_rank", "")
            copies[copy] = max(copies.get(copy, value), value)
    state = {name: sum(copies.values()) for name, copies in by_copy.items()}
    if "token_usage" in state:
        state["token_usage"] = max(by_copy["token_usage"].values())
    for name in MEANS & set(state):
        state[name] /= len(by_copy[name])
    if "prompt_tokens" in counted:
        counted.setdefault("cached_tokens", 0.0)
    return {**state, **counted}
