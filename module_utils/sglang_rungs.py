# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""The loads of a run, each with its repeats, and figures as words: what text, tables and charts of a report share.

A load that was repeated shows medians over its valid repeats, and its spread as "±", half the distance between the lowest and the
highest. For the controller.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from . import sglang_runs
from .sglang_runs import dig

OUTPUT = ("output_throughput_tokens_per_s",)
TOTAL = ("total_throughput_tokens_per_s",)


class Stat(NamedTuple):
    """Median, lowest and highest of the repeats that count; n of them. All None where n is 0."""

    median: float | None
    low: float | None
    high: float | None
    n: int

    @property
    def below(self) -> float:
        return (self.median or 0) - (self.low or 0)

    @property
    def above(self) -> float:
        return (self.high or 0) - (self.median or 0)

    @property
    def half(self) -> float | None:
        return (self.below + self.above) / 2 if self.n > 1 else None


class Row(NamedTuple):
    """One load with its repeats. `counted` are those whose figures are shown: the valid ones, else the measured ones."""

    place: int  # in the ladder
    load: dict[str, Any]
    rungs: list[dict[str, Any]]
    counted: list[dict[str, Any]]
    mark: str

    @property
    def valid(self) -> bool:
        return any(rung["valid"] for rung in self.counted)

    def stat(self, *path: str, part: str = "metrics") -> Stat:
        values = [value for value in (dig(rung.get(part), *path) for rung in self.counted) if value is not None]
        if not values:
            return Stat(None, None, None, 0)
        return Stat(statistics.median(values), min(values), max(values), len(values))

    def done(self) -> tuple[int, int]:
        """Requests answered and asked for, of the repeats that count."""
        answered = sum(dig(rung.get("metrics"), "completed") or 0 for rung in self.counted)
        return int(answered), sum(rung["load"].get("prompts") or 0 for rung in self.counted)


def rows(run: dict[str, Any]) -> list[Row]:
    """The ladder in its order, a row a load."""
    found: dict[int, list[dict[str, Any]]] = {}
    for rung in run.get("rungs") or []:
        found.setdefault(rung["index"], []).append(rung)
    made = []
    for index in sorted(found):
        rungs = sorted(found[index], key=lambda rung: rung["repeat"])
        measured = [rung for rung in rungs if rung["status"] == "measured"]
        valid = [rung for rung in measured if rung["valid"]]
        if valid:
            bad = len([rung for rung in rungs if rung["status"] != "not_run"]) - len(valid)
            mark = f"{len(valid)}/{len(valid) + bad} valid" if bad else ""
        elif measured:
            mark = "invalid"
        else:
            mark = "failed" if any(rung["status"] == "failed" for rung in rungs) else "not run"
        made.append(Row(index, rungs[0]["load"], rungs, valid or measured, mark))
    return made


def best(ladder: Iterable[Row]) -> Row | None:
    """The valid rung with the most output."""
    valid = [row for row in ladder if row.valid and row.stat(*OUTPUT).median is not None]
    return max(valid, key=lambda row: row.stat(*OUTPUT).median or 0, default=None)


# --- words ------------------------------------------------------------------------------------------------------------


def printable(value: Any) -> str:
    """Text without control characters: a terminal obeys them and XML forbids them."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(value))


def plain(value: Any) -> str:
    """One line of it."""
    return " ".join(printable(value).split())


def number(value: float | None, separator: str = "") -> str:
    """Three figures or the whole number; a dash for None."""
    if value is None:
        return "–"
    size = abs(value)
    digits = 0 if size >= 100 or value == 0 else 1 if size >= 10 else 2 if size >= 0.1 else 3
    return f"{value:{separator}.{digits}f}"


def ranged(stat: Stat, separator: str = "") -> str:
    """The median, with the spread where there is one."""
    spread = "" if not stat.half else f" ±{number(stat.half, separator)}"
    return number(stat.median, separator) + spread


def middle(text: str, most: int) -> str:
    """A name within `most` characters, without its middle: names that belong together differ at their ends."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - most // 2 - 1) :]}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def day(stamp: str) -> str:
    """2026-11-29T17:18:03Z as a person reads it; what is no time stays."""
    try:
        return datetime.datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return plain(stamp)


def lengths(load: dict[str, Any]) -> str:
    """Tokens in and out, such as 1024/256; the data set where its prompts decide."""
    if load.get("input_len") is None and load.get("output_len") is None:
        return plain(load.get("dataset") or "not stated")
    return "/".join("?" if load.get(name) is None else str(load[name]) for name in ("input_len", "output_len"))


def manner(load: dict[str, Any]) -> str:
    """What of a load is not its concurrency and lengths; what is not stated is left out."""
    ratio = load.get("range_ratio")
    words = [plain(load.get("dataset") or "dataset not stated")]
    if load.get("input_len") is not None and ratio is not None:
        words.append("fixed lengths" if ratio == 1 else f"lengths from {ratio:g} times to the whole")
    return ", ".join([*words, sglang_runs.pace(load) or "all at once"])


def names(ladder: Sequence[Row]) -> dict[int, str]:
    """The shortest name of each load that no other load of the ladder has."""
    ways: list[Callable[[Row], str]] = [
        lambda row: f"{row.load['concurrency']} at once",
        lambda row: f"{row.load['concurrency']} at once, {lengths(row.load)}",
        lambda row: f"{row.load['concurrency']} at once, {lengths(row.load)}, {manner(row.load)}",
        lambda row: f"{row.load['concurrency']} at once, {lengths(row.load)}, {row.load.get('prompts')} requests",
        lambda row: f"load {row.place + 1}, {row.load['concurrency']} at once",
    ]
    for way in ways:
        found = {row.place: way(row) for row in ladder}
        if len(set(found.values())) == len(found):
            break
    return found if ladder else {}


def power_rows(ladder: Sequence[Row]) -> list[Row]:
    """Rungs with telemetry of at least one card."""
    return [row for row in ladder if row.stat("power_w", "mean", part="telemetry").n]


def title(run: dict[str, Any]) -> str:
    label = f", {plain(run['label'])}" if run.get("label") else ""
    return f"{plain(run['profile']) or 'a server'} on {plain(run['host'])}{label}"
