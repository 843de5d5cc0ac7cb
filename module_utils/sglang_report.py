# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""What a person sees of a measurement: text, markdown, CSV, charts and a page, of one run and of a comparison.

A run is run.json, schemas/run.schema.json version 2; a comparison is what sglang_runs.compare() makes. Nothing is judged here:
verdicts are the run's own. A rung that was repeated shows medians over its valid repeats, and its spread as "±", half the distance
between the lowest and the highest. For the controller: needs jinja2, and matplotlib where charts are drawn.
"""

from __future__ import annotations

import csv as csv_format
import datetime
import html
import io
import math
import re
import shlex
import statistics
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils import sglang_results, sglang_runs
from ansible.module_utils.sglang_runs import dig

TEMPLATES = Path(__file__).resolve().parents[1] / "roles" / "sglang_bench" / "templates"

OUTPUT = ("output_throughput_tokens_per_s",)
TOTAL = ("total_throughput_tokens_per_s",)
LATENCY_NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}
# Lines of a terminal for what a release decided by itself.
DEFAULTS_SHOWN = 12

MEANINGS = [
    ("Output tok/s", "Tokens that the server generated, a second, over the whole load. The figure to compare engines by."),
    (
        "Total tok/s",
        "Input and generated tokens together. Long prompts make it large; it must never be laid beside output tok/s.",
    ),
    ("TTFT", "Time to the first token: from sending a request to its first text. Waiting in the queue is part of it."),
    ("TPOT", "Time per output token: what a request took after its first token, over the tokens after it."),
    ("ITL", "Inter-token latency: the time between two pieces of a stream, over all pieces of all requests."),
    ("E2E", "From sending a request to its last token."),
    (
        "p50, p90, p99",
        "Half, nine in ten and 99 in a hundred requests were at least as quick. With 100 requests p99 is the slowest one.",
    ),
    ("Concurrency", "Requests that the client keeps in flight: as one is answered, the next is sent."),
    (
        "Steady window",
        "The part of a load in which all places were taken; power and use are of it. “Whole” says that it could not be seen, "
        "so that the run-up and the end are counted as well.",
    ),
    ("Tokens per joule", "Generated tokens over the energy of all GPUs, from first request to last answer, without the host."),
    ("Invalid", "What was measured is not what was asked for. Its figures are shown and count for nothing."),
]  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------------


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


class Note(NamedTuple):
    """A sentence about one or more rungs, with what helps; `where` names the rungs."""

    kind: str
    text: str
    remedy: str = ""
    where: str = ""


class Place(NamedTuple):
    """One repeat of one load; `of` is how many the load has."""

    name: str
    repeat: int
    of: int

    def __str__(self) -> str:
        return self.name if self.of == 1 else f"{self.name}, repeat {self.repeat + 1}"


def several(places: Sequence[Place], every: int) -> str:
    """Where something holds, the first few of many; `every` is how many places there are."""
    if 1 < len(set(places)) == every:
        return "all loads"
    repeats: dict[str, list[Place]] = {}
    for place in dict.fromkeys(places):
        repeats.setdefault(place.name, []).append(place)
    labels = []
    for name, found in repeats.items():
        some = "" if len(found) == found[0].of else f", repeat {' and '.join(str(place.repeat + 1) for place in found)}"
        labels.append(name + some)
    return "; ".join(labels[:6]) + (f" and {len(labels) - 6} more" if len(labels) > 6 else "")


def each_rung(ladder: Sequence[Row]) -> list[tuple[Place, dict[str, Any]]]:
    """Every repeat of every load with its name."""
    label = names(ladder)
    return [(Place(label[row.place], rung["repeat"], len(row.rungs)), rung) for row in ladder for rung in row.rungs]


def gathered(found: Iterable[tuple[Place, Note]], every: int, same: Callable[[Note], Any]) -> list[Note]:
    """Notes that are the same said once, with all their places of `every`."""
    kept: dict[Any, list[tuple[Place, Note]]] = {}
    for place, note in found:
        kept.setdefault(same(note), []).append((place, note))
    return [group[0][1]._replace(where=several([place for place, _ in group], every)) for group in kept.values()]


SEVERITIES = ("error", "warning", "note")


def findings(ladder: Sequence[Row]) -> list[tuple[str, Note]]:
    """Signatures as (severity, note), the worst first; one an id, in the words of its first rung."""
    told = each_rung(ladder)
    worst: list[tuple[str, Note]] = []
    for severity in SEVERITIES:
        found = [
            (place, Note(plain(finding["id"]), plain(finding["cause"]), plain(finding["remedy"])))
            for place, rung in told
            for finding in rung.get("findings") or []
            if finding["severity"] == severity
        ]
        worst += [(severity, note) for note in gathered(found, len(told), lambda note: note.kind)]
    return worst


def faults(ladder: Sequence[Row]) -> list[Note]:
    """Rungs that count for nothing, and why."""
    found, told = [], each_rung(ladder)
    for place, rung in told:
        if rung["status"] == "measured" and rung["valid"]:
            continue
        kind = {"measured": "invalid", "failed": "failed", "not_run": "not run"}[rung["status"]]
        why = "; ".join(plain(problem).rstrip(".") for problem in rung.get("problems") or [])
        found.append((place, Note(kind, (why or "no reason was recorded") + ".")))
    return gathered(found, len(told), lambda note: note)


def remarks(ladder: Sequence[Row]) -> list[Note]:
    """What to know when reading the figures of rungs."""
    found, told = [], each_rung(ladder)
    for place, rung in told:
        found += [(place, Note("note", plain(note))) for note in rung.get("notes") or []]
        found += [(place, Note("not read", plain(line))) for line in (rung.get("telemetry") or {}).get("missing") or []]
    return gathered(found, len(told), lambda note: note)


class Verdict(NamedTuple):
    """A chip: state is good, bad, warn or unknown; the text stands alone, without the colour."""

    state: str
    text: str
    detail: str = ""


def share_of(rung: dict[str, Any]) -> float:
    """Of a load's input tokens, 0 to 1, how many the prefix cache had beyond what chance explains."""
    return sglang_runs.warm_share(rung) or 0.0


def cache(ladder: Sequence[Row]) -> Verdict:
    shares = [share for row in ladder if (share := row.stat("cached_token_ratio").high) is not None]
    if not shares:
        return Verdict(
            "unknown", "prefix cache: not told", "The server did not say how many input tokens it had cached."
        )
    share = max(shares)
    warm = any(share_of(rung) > sglang_runs.WARM for row in ladder for rung in row.counted)
    detail = f"At most {percent(share)} of the input tokens came from the prefix cache."
    return Verdict("warn", "prefix cache warm", detail) if warm else Verdict("good", "prefix cache cold", detail)


def verdicts(run: dict[str, Any]) -> list[Verdict]:
    """What may be said of the run in a few words, the most important first."""
    ladder = rows(run)
    every = [rung for row in ladder for rung in row.rungs]
    valid = sum(rung["valid"] for rung in every)
    count = f"{valid} of {len(every)} loads valid"
    found = [
        Verdict("good", f"valid: {count}")
        if run["valid"]
        else Verdict("warn" if broken_off(run) else "bad", f"not valid: {count}")
    ]
    if broken_off(run):
        found.append(Verdict("warn", "not finished", partly(run)))
    for when in ("before", "after"):
        gate = (run.get("answers") or {}).get(when)
        if gate:
            said = f"answers right {when}" if gate["passed"] else f"answers wrong {when}"
            found.append(Verdict("good" if gate["passed"] else "bad", said, plain(gate["summary"])))
        else:
            found.append(Verdict("unknown", f"answers not checked {when}"))
    tuning = run.get("tuning") or {}
    if tuning.get("verdict"):
        state = "good" if tuning.get("proved") else "unknown" if tuning["verdict"] == "silent" else "warn"
        found.append(Verdict(state, f"tuning: {plain(tuning['verdict'])}", plain(tuning.get("summary", ""))))
    else:
        found.append(Verdict("unknown", "tuning: not looked at"))
    if any(row.counted for row in ladder):
        found.append(cache(ladder))
    return found


def broken_off(run: dict[str, Any]) -> bool:
    """Null is a ladder that is not at its end; an empty text is one of before, when its end was not kept."""
    return run["finished"] is None


def partly(run: dict[str, Any]) -> str:
    """The warning of a run that was broken off; empty for one that was not."""
    if not broken_off(run):
        return ""
    every = [rung["status"] for rung in run["rungs"]]
    done = sum(status != "not_run" for status in every)
    return f"Only partly there: {done} of {len(every)} loads were run. The ladder was broken off and goes on from here."


def headline(run: dict[str, Any]) -> str:
    """What was reached, in a sentence."""
    top = best(rows(run))
    if top is None:
        return "No load gave a valid figure."
    load, tpot, ttft = top.load, top.stat("tpot_ms", "median").median, top.stat("ttft_ms", "median").median
    at = f"{load['concurrency']} request{'s' if load['concurrency'] != 1 else ''} at once"
    tokens = (
        ""
        if load.get("input_len") is None
        else f", {load['input_len']} tokens in and {load.get('output_len') or '?'} out"
    )
    waits = [
        f"{number(value, ',')} ms {what}"
        for value, what in ((ttft, "to the first token"), (tpot, "a token after it"))
        if value
    ]
    middle = f" (median: {', '.join(waits)})" if waits else ""
    return f"Output {number(top.stat(*OUTPUT).median, ',')} tok/s at {at}{tokens}{middle}."


def scaling(run: dict[str, Any]) -> str:
    """What more requests at once brought and cost, over the longest series of valid rungs; empty for fewer than two."""
    series = max(split([row for row in rows(run) if row.valid]).values(), key=len, default=[])
    ends = sorted(series, key=lambda row: row.load["concurrency"])
    if len({row.load["concurrency"] for row in ends}) < 2:
        return ""
    first, last = ends[0], ends[-1]

    def grew(*path: str) -> float | None:
        low, high = first.stat(*path).median, last.stat(*path).median
        return high / low if low and high is not None else None

    output, tpot = grew(*OUTPUT), grew("tpot_ms", "median")
    if output is None:
        return ""
    cost = "" if tpot is None else f", while a token took {number(tpot)} times as long"
    return (
        f"From {first.load['concurrency']} to {last.load['concurrency']} requests at once ({lengths(first.load)}) output rose "
        f"{number(output)} times{cost}."
    )


# --- what was run -----------------------------------------------------------------------------------------------------


def word(value: Any) -> str:
    """A setting's value as a command line would have it."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    return plain(value)


def gpus(run: dict[str, Any]) -> str:
    """The cards by name: the node's facts, else what telemetry saw; empty where neither knows of one."""
    cards = (run.get("node") or {}).get("gpus")
    if not cards:
        cards = max(((rung.get("telemetry") or {}).get("gpus") or [] for rung in run["rungs"]), key=len, default=[])
    return plain(sglang_runs.gpus({"gpus": cards}))


def facts(run: dict[str, Any]) -> list[tuple[str, str]]:
    """What was measured, on what, as (name, value), as far as it is known."""
    node, deployment, target = run.get("node") or {}, run.get("deployment") or {}, run["target"]
    memory = dig(node, "memory_mib", "total")
    driver = node.get("driver") or {}
    patches = deployment.get("patches") or []
    patch_names = [f"{patch.get('name', '?')} {patch.get('status') or ''}".strip() for patch in patches]
    clients = {
        f"{rung['client'].get('module')} of {rung['client'].get('version')}"
        for rung in run["rungs"]
        if rung.get("client")
    }
    found = [
        ("Model", target["served_model"]),
        ("Model's path", target["model_path"] if target["model_path"] != target["served_model"] else ""),
        ("Server", target["url"]),
        ("SGLang", run["server"]["sglang"]),
        ("FlashInfer", deployment.get("flashinfer")),
        ("Release", deployment.get("release")),
        (
            "Deployment",
            "" if target["deployed"] else "not by this project: nothing is known beside what the server says",
        ),
        ("Deployment's id", deployment.get("id")),
        ("Patches", ", ".join(map(plain, patch_names)) or ("none" if target["deployed"] else "")),
        ("GPUs", gpus(run)),
        (
            "Driver",
            " ".join(
                f"{driver.get('version') or ''} {'(CUDA ' + driver['cuda'] + ')' if driver.get('cuda') else ''}".split()
            ),
        ),
        ("CPUs", node.get("cpus")),
        ("Memory", f"{memory / 1024:.0f} GiB" if memory else ""),
        ("System", ", ".join(map(plain, filter(None, (node.get("os"), node.get("kernel"), node.get("machine")))))),
        ("Client", ", ".join(sorted(clients))),
        ("Seed", run["seed"]),
        ("Repeats", run["repeats"] if run["repeats"] > 1 else ""),
    ]
    return [(name, plain(value)) for name, value in found if value not in (None, "", [])]


def settings(values: dict[str, Any] | None) -> list[tuple[str, str]]:
    return [(plain(name), word(value)) for name, value in sorted((values or {}).items())]


def commands(run: dict[str, Any]) -> list[tuple[str, str]]:
    """Each client's command line by the rung's name."""
    return [
        (str(place), printable(shlex.join(rung["command"])))
        for place, rung in each_rung(rows(run))
        if rung.get("command")
    ]


def fallbacks(run: dict[str, Any]) -> list[str]:
    """Operations that fell back to defaults while the loads ran."""
    found = []
    for item in (run.get("tuning") or {}).get("fallbacks") or []:
        if not isinstance(item, dict):
            found.append(plain(item))
            continue
        known = f", accepted: {plain(item['accepted'])}" if item.get("accepted") else ""
        found.append(f"{plain(item.get('op', '?'))}: {item.get('calls', '?')} times{known}")
    return found


def power_rows(ladder: Sequence[Row]) -> list[Row]:
    """Rungs with telemetry of at least one card."""
    return [row for row in ladder if row.stat("power_w", "mean", part="telemetry").n]


# --- text for terminals -----------------------------------------------------------------------------------------------


def wrapped(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """A paragraph within `width` columns; a word longer than a line is broken, since a terminal would do it worse."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=first if rest is None else rest, break_on_hyphens=False
    )


def grid(head: Sequence[str], lines: Sequence[Sequence[str]], gap: int, left: Sequence[int] = ()) -> list[str]:
    """Columns as wide as their widest cell, to the right but for those in `left`."""
    every = [head, *lines]
    widths = [max(len(line[column]) for line in every) for column in range(len(head))]
    return [
        (" " * gap)
        .join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        .rstrip()
        for line in every
    ]


def fitted(columns: dict[str, list[str]], width: int, droppable: Sequence[str], left: Sequence[str] = ()) -> list[str]:
    """The columns as a grid within `width`: closer together first, then without those that can be spared, last first."""
    kept = dict(columns)
    spare = list(droppable)
    while True:
        heads = list(kept)
        for gap in (2, 1):
            lines = [list(line) for line in zip(*kept.values(), strict=True)]
            drawn = grid(heads, lines, gap, [heads.index(name) for name in left if name in heads])
            if max(map(len, drawn)) <= width:
                return drawn
        if not spare:
            return [line[:width] for line in drawn]
        kept.pop(spare.pop(), None)


def pair(row: Row, latency: str) -> str:
    """p50/p99 of a latency."""
    median, p99 = row.stat(latency, "median"), row.stat(latency, "p99")
    return "–" if median.n + p99.n == 0 else f"{number(median.median)}/{number(p99.median)}"


def done(row: Row) -> str:
    answered, asked = row.done()
    return f"{answered}/{asked}" if asked else "–"


def ladder_columns(ladder: Sequence[Row]) -> dict[str, list[str]]:
    """The terminal's table by column."""
    rated = any(row.load.get("request_rate") is not None for row in ladder)
    columns: dict[str, list[str]] = {"conc": [str(row.load["concurrency"]) for row in ladder]}
    if rated:
        rates = [row.load.get("request_rate") for row in ladder]
        columns["req/s"] = ["–" if rate is None else f"{rate:g}" for rate in rates]
    columns["in/out"] = [lengths(row.load) for row in ladder]
    columns["out tok/s"] = [ranged(row.stat(*OUTPUT)) for row in ladder]
    columns["total tok/s"] = [number(row.stat(*TOTAL).median) for row in ladder]
    columns["TTFT ms"] = [pair(row, "ttft_ms") for row in ladder]
    columns["TPOT ms"] = [pair(row, "tpot_ms") for row in ladder]
    columns["done"] = [done(row) for row in ladder]
    if any(row.mark for row in ladder):
        columns[""] = [row.mark for row in ladder]
    return columns


def power_columns(ladder: Sequence[Row]) -> dict[str, list[str]]:
    def told(row: Row, *path: str) -> float | None:
        return row.stat(*path, part="telemetry").median

    return {
        "conc": [str(row.load["concurrency"]) for row in ladder],
        "in/out": [lengths(row.load) for row in ladder],
        "mean W": [number(told(row, "power_w", "mean")) for row in ladder],
        "peak W": [number(told(row, "power_w", "peak")) for row in ladder],
        "limit W": [number(told(row, "limit_w")) for row in ladder],
        "of limit": [percent(told(row, "power_of_limit")) for row in ladder],
        "GPU busy": [
            percent(None if (u := told(row, "utilization_percent", "mean")) is None else u / 100) for row in ladder
        ],
        "tok/J": [number(told(row, "output_tokens_per_j")) for row in ladder],
    }


def title(run: dict[str, Any]) -> str:
    label = f", {plain(run['label'])}" if run.get("label") else ""
    return f"{plain(run['profile']) or 'a server'} on {plain(run['host'])}{label}"


def served(run: dict[str, Any]) -> str:
    """By what, on what, when, in a line."""
    sglang = f"SGLang {plain(run['server']['sglang'])}" if run["server"]["sglang"] else "SGLang, release not known"
    return " · ".join(filter(None, (day(run["started"]), sglang, gpus(run), plain(run["target"]["served_model"]))))


def text(run: dict[str, Any], width: int = 80) -> str:
    """The terminal's report."""
    ladder = rows(run)
    lines = [*wrapped(title(run), width), *wrapped(served(run), width), ""]
    if partly(run):
        lines += [*wrapped(partly(run), width), ""]
    lines += wrapped(headline(run), width)
    if scaling(run):
        lines += wrapped(scaling(run), width)
    if ladder:
        manners = list(dict.fromkeys(manner(row.load) for row in ladder))
        lines += ["", *wrapped(f"Load: {'; '.join(manners)}.", width), ""]
        lines += fitted(ladder_columns(ladder), width, ["in/out", "total tok/s"], [""])
        lines += ["", *wrapped(
            "out, total: tokens generated, and with those of the prompts, a second; TTFT: to the first token, TPOT: each "
            "token after it, p50/p99.", width,
        )]  # fmt: skip
        if any(row.stat(*OUTPUT).n > 1 for row in ladder):
            lines += wrapped("Medians over the valid repeats; ±: half the way from the lowest to the highest.", width)
    powered = power_rows(ladder)
    if powered:
        lines += ["", *fitted(power_columns(powered), width, ["in/out"]), ""]
        lines += wrapped("Of all GPUs; tok/J: tokens generated a joule.", width)
    summary = plain((run.get("tuning") or {}).get("summary", ""))
    if summary:
        lines += ["", *wrapped(f"Tuning: {summary}", width, rest="  ")]
    gates = [(when, gate) for when in ("before", "after") if (gate := (run.get("answers") or {}).get(when))]
    if gates:
        lines.append("")
    for when, gate in gates:
        said = "right" if gate["passed"] else "WRONG"
        lines += wrapped(f"Answers {said} {when} the loads: {plain(gate['summary'])}", width, rest="  ")
    for note in faults(ladder):
        lines += ["", *wrapped(f"{note.kind.capitalize()}: {note.where}. {note.text}", width, rest="  ")]
    for severity, note in findings(ladder):
        lines += ["", *wrapped(f"{severity.capitalize()} {note.kind}, at {note.where}: {note.text}", width, rest="  ")]
        lines += wrapped(note.remedy, width, "  Remedy: ", "  ")
    if remarks(ladder):
        lines.append("")
    for note in remarks(ladder):
        lines += wrapped(f"{note.kind.capitalize()}, {note.where}: {note.text}", width, rest="  ")
    if run.get("problems"):
        lines += ["", "Against the whole of it:"]
        lines += [line for problem in run["problems"] for line in wrapped(plain(problem), width, "- ", "  ")]
    return "\n".join(lines) + "\n"


# --- markdown ---------------------------------------------------------------------------------------------------------


def md(value: Any) -> str:
    """Text that markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", html.escape(plain(value), quote=False))


def md_code(value: Any) -> str:
    """A code span around text that may hold backticks and pipes."""
    shown = plain(value).replace("|", "\\|")
    fence = "`" * (max(map(len, re.findall("`+", shown)), default=0) + 1)
    space = " " if shown[:1] == "`" or shown[-1:] == "`" else ""
    return f"{fence}{space}{shown}{space}{fence}"


def md_table(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 0) -> list[str]:
    """A table whose first `left` columns are aligned to the left."""
    rule = [":--" if column < left else "--:" for column in range(len(head))]
    return [f"| {' | '.join(line)} |" for line in (head, rule, *lines)]


def md_columns(columns: dict[str, list[str]]) -> list[str]:
    return md_table(
        [name or "verdict" for name in columns],
        [[md(cell) for cell in line] for line in zip(*columns.values(), strict=True)],
    )


def markdown(run: dict[str, Any]) -> str:
    """report.md, beside charts/."""
    ladder = rows(run)
    lines = [f"# {md(title(run))}", "", md(served(run)), ""]
    if partly(run):
        lines += [f"> **{md(partly(run))}**", ""]
    lines += [f"**{md(headline(run))}** {md(scaling(run))}".rstrip(), ""]
    lines += [
        *(f"- {md(v.text)}{': ' + md(v.detail) if v.detail and v.state != 'good' else ''}" for v in verdicts(run)),
        "",
    ]
    if ladder:
        lines += ["## Loads", "", md("; ".join(dict.fromkeys(manner(row.load) for row in ladder))) + ".", ""]
        lines += [*md_columns(ladder_columns(ladder)), ""]
        lines += [
            "out: tokens generated a second; total: with those of the prompts. TTFT, TPOT: p50/p99 in milliseconds.",
            "",
        ]
    drawn = chart_names([run])
    for name in drawn:
        lines += [f"![{CAPTIONS[name]}](charts/{name}.png)", ""]
    powered = power_rows(ladder)
    if powered:
        lines += [
            "## Power",
            "",
            *md_columns(power_columns(powered)),
            "",
            "Of all GPUs; tok/J: tokens generated a joule.",
            "",
        ]
    sections: list[tuple[str, list[str]]] = [
        ("Not valid", [f"**{note.kind}**, {md(note.where)}: {md(note.text)}" for note in faults(ladder)]),
        (
            "Findings",
            [
                f"**{severity}: {md(note.kind)}**, at {md(note.where)}: {md(note.text)} *Remedy:* {md(note.remedy)}"
                for severity, note in findings(ladder)
            ],
        ),
        ("Notes", [f"{md(note.where)}: {md(note.text)}" for note in remarks(ladder)]),
        ("Against the whole of it", [md(problem) for problem in run.get("problems") or []]),
        ("Tuning", [md(line) for line in [(run.get("tuning") or {}).get("summary", ""), *fallbacks(run)] if line]),
    ]
    for head, items in sections:
        if items:
            lines += [f"## {head}", "", *(f"- {item}" for item in items), ""]
    lines += ["## What was run", "", *md_table(["", ""], [[md(k), md(v)] for k, v in facts(run)], 2), ""]
    for head, values in (
        ("Arguments given", run["server"].get("given")),
        ("Environment", run["server"].get("environment")),
    ):
        if values:
            lines += [
                f"### {head}",
                "",
                *md_table(["", ""], [[md_code(k), md_code(v)] for k, v in settings(values)], 2),
                "",
            ]
    if run["server"]["arguments"]:
        lines += [
            f"All {len(run['server']['arguments'])} arguments as the release resolved them are in `run.json`.",
            "",
        ]
    lines += ["## What the figures mean", "", *(f"- **{name}**: {md(meaning)}" for name, meaning in MEANINGS)]
    return "\n".join(lines) + "\n"


# --- CSV --------------------------------------------------------------------------------------------------------------

CSV_LOAD = (
    "concurrency", "prompts", "input_len", "output_len", "range_ratio", "dataset", "file", "file_sha256", "trace_slowdown",
    "request_rate", "seed",
)  # fmt: skip
CSV_FIGURES = (
    "completed", "failed", "duration_s", "request_throughput_per_s", "input_tokens", "output_tokens",
    "input_throughput_tokens_per_s", "output_throughput_tokens_per_s", "total_throughput_tokens_per_s", "concurrency_mean",
    "accept_length", "cached_token_ratio",
)  # fmt: skip
CSV_LATENCY = ("mean", "median", "p90", "p95", "p99")
CSV_POWER = {
    "power_mean_w": ("power_w", "mean"),
    "power_peak_w": ("power_w", "peak"),
    "power_limit_w": ("limit_w",),
    "gpu_utilization_mean_percent": ("utilization_percent", "mean"),
    "energy_j": ("energy_j",),
    "output_tokens_per_j": ("output_tokens_per_j",),
}


def csv(run: dict[str, Any]) -> str:
    """A line a measured rung and repeat; a figure that is not there is an empty cell."""

    def shown(value: Any) -> Any:
        # A spreadsheet takes text that begins so for a formula.
        return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value

    out = io.StringIO()
    writer = csv_format.writer(out, lineterminator="\n")
    timed = [(latency, statistic) for latency in LATENCY_NAMES for statistic in CSV_LATENCY]
    head = ["index", "repeat", *CSV_LOAD, "valid", *CSV_FIGURES]
    head += [f"{latency[:-3]}_{statistic}_ms" for latency, statistic in timed]
    writer.writerow([*head, *CSV_POWER, "problems"])
    for row in rows(run):
        for rung in row.rungs:
            if rung["status"] != "measured":
                continue
            line = [
                rung["index"],
                rung["repeat"],
                *(rung["load"].get(name) for name in CSV_LOAD),
                str(rung["valid"]).lower(),
            ]
            line += [dig(rung["metrics"], name) for name in CSV_FIGURES]
            line += [dig(rung["metrics"], latency, statistic) for latency, statistic in timed]
            line += [dig(rung["telemetry"], *path) for path in CSV_POWER.values()]
            writer.writerow([shown(value) for value in [*line, "; ".join(map(plain, rung["problems"]))]])
    return out.getvalue()


# --- charts -----------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 480, 280  # of a panel, in CSS pixels
INKS = ("bg", "fg", "mute", "grid", "s0", "s1", "s2", "s3", "s4", "s5")
TOP = 36  # of it, above the axes
SERIES = 6  # colours; after them dashes tell series apart
# What no chart uses by chance; the page's variables take its place.
SENTINEL = {ink: f"#0a0b{number:02x}" for number, ink in enumerate(INKS)}
# PNG is fixed: the page's light mode (palette.css.j2).
LIGHT = dict(
    zip(
        INKS,
        ("#ffffff", "#1c2126", "#59636e", "#e3e6ea", "#0b5cad", "#b8420f", "#00735a", "#83479a", "#80600a", "#46525e"),
        strict=True,
    )
)
DASHES: Any = ("-", (0, (5, 2)), (0, (1.2, 1.8)), (0, (5, 2, 1.2, 2)))
MARKERS = ("o", "s", "D", "^")
CAPTIONS = {
    "throughput": "Throughput against concurrency, and against the speed of a single request",
    "latency": "Latency against concurrency",
    "power": "Power and energy against concurrency",
}


class Chart(NamedTuple):
    """`svg` has the page's CSS variables for colours, and a <svg> a panel; `png` has fixed colours and double resolution."""

    name: str
    title: str
    svg: str
    png: bytes


class Curve(NamedTuple):
    """Points that may be joined: rows that differ in nothing but the x axis. `colour` and `dash` are places in INKS and DASHES."""

    label: str
    colour: int
    dash: int
    rows: list[Row]


class Axis(NamedTuple):
    title: str
    of: Callable[[Row], float | None]


class Trace(NamedTuple):
    """One figure of a curve, with how it is drawn and the word at its end."""

    of: Callable[[Row], Stat]
    word: str = ""
    dash: int | None = None
    colour: int | None = None


class Panel(NamedTuple):
    title: str
    axis: Axis
    traces: list[Trace]
    log: bool = False
    limit: float | None = None
    labelled: bool = False


CONCURRENCY = Axis("requests at once", lambda row: row.load["concurrency"])
RATE = Axis("requests sent a second", lambda row: row.load.get("request_rate"))


def shape(load: dict[str, Any], *without: str) -> tuple[Any, ...]:
    """What two loads share that may stand on one curve."""
    parts = zip(sglang_runs.LOAD, sglang_runs.load_key(load), strict=True)
    return tuple(value for part, value in parts if part not in without)


def split(ladder: Sequence[Row], *x: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by the curve that they belong to; `x` are the parts of a load that the axis shows."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in ladder:
        found.setdefault(shape(row.load, *(x or ("concurrency",))), []).append(row)
    return found


def axis_of(ladders: Sequence[Sequence[Row]]) -> tuple[Axis, str]:
    """The axis that the ladders climb: their request rates where those vary more than concurrency."""
    every = [row.load for ladder in ladders for row in ladder]
    rates = {load.get("request_rate") for load in every}
    climbed = None not in rates and len(rates) > len({load["concurrency"] for load in every})
    return (RATE, "request_rate") if climbed else (CONCURRENCY, "concurrency")


def curve_name(load: dict[str, Any], others: Sequence[dict[str, Any]], x: str) -> str:
    """What tells a curve from the others: lengths, then data set, ratio, rate or concurrency where they differ."""

    def differs(part: str) -> bool:
        return len({other.get(part) for other in others}) > 1

    words = [lengths(load)]
    if differs("dataset") and words != [plain(load.get("dataset"))]:
        words.append(plain(load.get("dataset")))
    if differs("range_ratio"):
        words.append("ratio not stated" if load.get("range_ratio") is None else f"ratio {load['range_ratio']:g}")
    if x != "request_rate" and differs("request_rate"):
        words.append("all at once" if load.get("request_rate") is None else f"{load['request_rate']:g} req/s")
    if load.get("dataset") == "trace" and differs("trace_slowdown"):
        words.append(sglang_runs.pace(load))
    if load.get("dataset") == "trace" and differs("prompts"):
        words.append(f"{load.get('prompts')} requests")
    if x != "concurrency" and differs("concurrency"):
        words.append(f"{load['concurrency']} at once")
    return middle(", ".join(words), 34)


def curves(ladders: Sequence[Sequence[Row]], titles: Sequence[str], x: str) -> list[Curve]:
    """Of one run a colour a curve; of several a colour a run, and dashes for its curves."""
    parted = [split(ladder, x) for ladder in ladders]
    first_loads = [found[0].load for groups in parted for found in groups.values()]
    shapes = list(dict.fromkeys(key for groups in parted for key in groups))
    made = []
    for place, (groups, name) in enumerate(zip(parted, titles, strict=True)):
        for key, found in groups.items():
            which = shapes.index(key)
            label = curve_name(found[0].load, first_loads, x)
            if len(ladders) > 1:
                label = name if len(shapes) == 1 else f"{name}, {label}"
            colour, dash = (which, which // SERIES) if len(ladders) == 1 else (place, which)
            ordered = sorted(found, key=lambda row: (row.load.get(x) or 0, row.place))
            made.append(Curve(label, colour % SERIES, dash % len(DASHES), ordered))
    return made


def metric(*path: str) -> Callable[[Row], Stat]:
    return lambda row: row.stat(*path)


def watched(*path: str) -> Callable[[Row], Stat]:
    return lambda row: row.stat(*path, part="telemetry")


def single_speed(row: Row) -> float | None:
    """Tokens a second that one request sees after its first."""
    tpot = row.stat("tpot_ms", "median").median
    return 1000 / tpot if tpot else None


def panels(name: str, ladders: Sequence[Sequence[Row]], drawn: Sequence[Curve], axis: Axis) -> list[Panel]:
    """The panels of a chart; what tells figures of one curve apart depends on whether colours are taken by curves."""
    many, several_runs = len(drawn) > 1, len(ladders) > 1
    if name == "throughput":
        both = [Trace(metric(*OUTPUT), "output")] + (
            [] if several_runs else [Trace(metric(*TOTAL), "total", 1, None if many else 5)]
        )
        heading = "Output tokens a second" if several_runs else "Tokens a second: output, and with input (total)"
        return [
            Panel(heading, axis, both),
            Panel(
                "Output tok/s against tok/s of one request",
                Axis("tokens a second that one request sees (1000 / TPOT p50)", single_speed),
                [Trace(metric(*OUTPUT))],
                labelled=True,
            ),
        ]
    if name == "latency":
        parts = [("median", "p50", 0)] if several_runs else [("median", "p50", 0), ("p90", "p90", 2), ("p99", "p99", 1)]
        told = "p50" if several_runs else "p50, p90 and p99"

        def of(
            latency: str, prefix: str = "", colour: int | None = None, some: Sequence[int] = (0, 1, 2)
        ) -> list[Trace]:
            return [
                Trace(metric(latency, part), f"{prefix}{word}", dash if not several_runs else None, colour)
                for part, word, dash in parts
                if dash in some
            ]

        tokens = of("tpot_ms") if many else of("tpot_ms", "TPOT ", 0, (0, 1)) + of("itl_ms", "ITL ", 1, (0, 1))
        return [
            Panel(f"Time to the first token, ms ({told})", axis, of("ttft_ms"), log=True),
            Panel(
                f"Time a token, ms ({told})" if many else "Time a token, ms (TPOT by request, ITL by piece)",
                axis,
                tokens,
                log=True,
            ),
        ]
    limits = {row.stat("limit_w", part="telemetry").median for ladder in ladders for row in ladder} - {None}
    mean, peak = watched("power_w", "mean"), watched("power_w", "peak")
    return [
        Panel(
            "Power of all GPUs, W",
            axis,
            [Trace(mean, "mean")] + ([] if several_runs else [Trace(peak, "peak", 1)]),
            limit=limits.pop() if len(limits) == 1 else None,
        ),
        Panel("Output tokens a joule", axis, [Trace(watched("output_tokens_per_j"))]),
    ]


def chart_names(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Charts that have something to show."""
    ladders = [rows(run) for run in runs]
    measured = any(row.stat(*OUTPUT).n for ladder in ladders for row in ladder)
    latency = any(row.stat(name, "median").n for ladder in ladders for row in ladder for name in ("ttft_ms", "tpot_ms"))
    power = any(power_rows(ladder) for ladder in ladders)
    return [name for name, there in (("throughput", measured), ("latency", latency), ("power", power)) if there]


def thinned(places: Sequence[float], least: float) -> list[float]:
    """Places on a log axis that are at least `least` of its length apart; the ends stay."""
    if len(places) < 3:
        return list(places)
    span = math.log2(places[-1] / places[0]) or 1
    kept = [places[0]]
    for place in places[1:-1]:
        if min(math.log2(place / kept[-1]), math.log2(places[-1] / place)) / span >= least:
            kept.append(place)
    return [*kept, places[-1]]


def draw_trace(axes: Any, ink: dict[str, str], axis: Axis, curve: Curve, trace: Trace) -> tuple[float, float] | None:
    """A line with its marks, hollow where invalid, and whiskers from lowest to highest; the last point."""
    points = [(x, trace.of(row), row.valid) for row in curve.rows if (x := axis.of(row)) is not None]
    shown = [(x, stat, valid) for x, stat, valid in points if stat.median is not None]
    if not shown:
        return None
    colour = ink[f"s{curve.colour if trace.colour is None else trace.colour}"]
    dash = DASHES[curve.dash if trace.dash is None else trace.dash]
    marker = MARKERS[curve.dash]
    minor = trace.dash not in (None, 0)
    axes.plot(
        [x for x, _, _ in shown],
        [s.median for _, s, _ in shown],
        color=colour,
        linestyle=dash,
        linewidth=1.2 if minor else 1.9,
    )
    for x, stat, valid in shown:
        if stat.n > 1:
            axes.errorbar(
                x, stat.median, [[stat.below], [stat.above]],
                fmt="none", color=colour, ecolor=colour, elinewidth=1.2, capsize=3.5, capthick=1.2,
            )  # fmt: skip
        face = colour if valid else ink["bg"]
        size = 3.4 if minor else 5.4
        axes.plot(
            [x],
            [stat.median],
            marker=marker,
            markersize=size if valid else 6,
            color=colour,
            markerfacecolor=face,
            zorder=3,
        )
    x, stat, _ = shown[-1]
    return x, stat.median or 0


def place_words(axes: Any, words: Sequence[tuple[float, float, str, str]], size: float) -> None:
    """Words behind the ends of lines, (x, y, word, colour), pushed apart where they would cover each other.

    The figure is at 72 dots an inch here, so a pixel is a point, and an offset in points holds at any resolution.
    """
    pixels = [axes.transData.transform((x, y)) for x, y, _, _ in words]
    right = max(pixel[0] for pixel in pixels)
    last = -math.inf
    for place in sorted(range(len(words)), key=lambda place: pixels[place][1]):
        x, y, word, colour = words[place]
        last = max(pixels[place][1], last + size * 1.15)
        offset = (right + 8 - pixels[place][0], last - pixels[place][1])
        axes.annotate(word, (x, y), xytext=offset, textcoords="offset points", color=colour, fontsize=size, va="center")


def draw(axes: Any, ink: dict[str, str], panel: Panel, drawn: Sequence[Curve], pad: float) -> None:
    """One panel on one axes of matplotlib; `pad` is the room between axes and title."""
    from matplotlib import ticker

    climbing = panel.axis in (CONCURRENCY, RATE)
    ends: list[tuple[float, float, str, str]] = []
    for curve in drawn:
        for trace in panel.traces:
            end = draw_trace(axes, ink, panel.axis, curve, trace)
            colour = ink[f"s{curve.colour if trace.colour is None else trace.colour}"]
            if end and trace.word and len(panel.traces) > 1 and (len(drawn) == 1 or curve is drawn[0]):
                ends.append((*end, trace.word, colour))
    values = [
        value
        for curve in drawn
        for row in curve.rows
        for trace in panel.traces
        for value in trace.of(row)[:3]
        if value is not None and panel.axis.of(row) is not None
    ]
    places = sorted({x for curve in drawn for row in curve.rows if (x := panel.axis.of(row))})
    if climbing and places:
        axes.set_xscale("log", base=2)
        shown = thinned(places, 0.075)
        axes.xaxis.set_major_locator(ticker.FixedLocator(shown))
        axes.xaxis.set_major_formatter(ticker.FixedFormatter([f"{place:g}" for place in shown]))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        margin = 2 ** (0.06 * math.log2(places[-1] / places[0])) if len(places) > 1 else 2
        axes.set_xlim(places[0] / margin, places[-1] * margin)
    else:
        axes.set_xlim(0, max(places, default=1) * 1.12)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:,g}"))
    top = max([*values, panel.limit or 0, 0])
    low = min(values, default=0)
    if panel.log and low > 0 and top / low > 12:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.4, top * 1.4)
        axes.yaxis.set_major_locator(ticker.LogLocator(10, (1.0, 2.0, 5.0) if top / low < 200 else (1.0,), numticks=12))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    else:
        axes.set_ylim(0, top * 1.1 or 1)
        axes.yaxis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f"{y:,g}"))
    if panel.limit:
        axes.axhline(panel.limit, color=ink["mute"], linewidth=1, linestyle=DASHES[1])
        axes.annotate(
            f"limit {panel.limit:,.0f} W", (0.01, panel.limit), xycoords=("axes fraction", "data"), xytext=(0, -4),
            textcoords="offset points", va="top", color=ink["mute"], fontsize=10.5,
        )  # fmt: skip
    failed = [
        x for curve in drawn for row in curve.rows if row.mark == "failed" and (x := panel.axis.of(row)) is not None
    ]
    for x in failed if climbing else []:
        axes.plot(
            [x], [0], marker="x", markersize=8, markeredgewidth=2, color=ink["fg"], transform=axes.get_xaxis_transform(),
            clip_on=False, zorder=4,
        )  # fmt: skip
    if panel.labelled:
        near = [
            (row, x, y)
            for curve in drawn
            for row in curve.rows
            if (x := panel.axis.of(row)) and (y := row.stat(*OUTPUT).median)
        ]
        for row, x, y in near if len(near) <= 24 else []:
            axes.annotate(
                f"{row.load['concurrency']}",
                (x, y),
                xytext=(6, 5),
                textcoords="offset points",
                color=ink["mute"],
                fontsize=10.5,
            )
    axes.set_title(panel.title, loc="left", fontsize=12, fontweight="bold", color=ink["fg"], pad=pad)
    axes.set_xlabel(panel.axis.title, fontsize=11, color=ink["mute"], loc="left")
    axes.set_facecolor(ink["bg"])
    axes.tick_params(colors=ink["mute"], labelsize=11, length=0, pad=7)
    axes.grid(axis="y", color=ink["grid"], linewidth=1)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(ink["mute"])
    if ends:
        place_words(axes, ends, 10.5)


def legend(axes: Any, ink: dict[str, str], drawn: Sequence[Curve], columns: int) -> None:
    """Curves by their colour, above the axes."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=ink[f"s{curve.colour}"],
            linestyle=DASHES[curve.dash],
            marker=MARKERS[curve.dash],
            markersize=5,
        )
        for curve in drawn
    ]
    axes.legend(
        handles, [curve.label for curve in drawn], loc="lower left", bbox_to_anchor=(-0.01, 0.985), ncol=columns, frameon=False,
        fontsize=10.5, labelcolor=ink["fg"], handlelength=1.8, columnspacing=1.2, borderpad=0, handletextpad=0.5,
    )  # fmt: skip


def figure(ink: dict[str, str], parts: Sequence[Panel], drawn: Sequence[Curve]) -> Any:
    """A matplotlib figure of panels side by side; 72 dots an inch make its points the page's pixels."""
    from matplotlib.figure import Figure

    # A line of legend more for every few curves.
    columns = max(1, min(3, 66 // (max(len(curve.label) for curve in drawn) + 5))) if drawn else 1
    extra = 16 * math.ceil(len(drawn) / columns) if len(drawn) > 1 else 0
    height = HEIGHT + extra
    made = Figure((WIDTH * len(parts) / 72, height / 72), dpi=72, facecolor=ink["bg"])
    for place, panel in enumerate(parts):
        words = [trace.word for trace in panel.traces] if len(panel.traces) > 1 else []
        right = 22 + (7 * max(map(len, words)) if words else 0)
        axes = made.add_axes(
            (
                (WIDTH * place + 62) / made.bbox.width,
                52 / height,
                (WIDTH - 62 - right) / made.bbox.width,
                (HEIGHT - 52 - TOP) / height,
            )
        )
        draw(axes, ink, panel, drawn, 4 + extra if extra else 9)
        if extra:
            legend(axes, ink, drawn, columns)
    return made


STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "axes.unicode_minus": False,
    "path.simplify": False,
}


def svg(made: Any, name: str, label: str) -> str:
    """The figure as an element for a page: the page's colours and fonts, as wide as its place, ids of its own."""
    out = io.StringIO()
    made.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    drawn = out.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"#0a0b([0-9a-f]{2})", lambda found: f"var(--{INKS[int(found[1], 16)]})", drawn)
    drawn = re.sub(r"font: ([^'\";]*?)'[^\";]*", r"font: \1var(--sans)", drawn)
    drawn = re.sub(r'\bid="', f'id="{name}-', drawn)
    drawn = re.sub(r'(xlink:href="|url\()#', rf"\g<1>#{name}-", drawn)
    head = re.match(r"<svg[^>]*?viewBox=\"([^\"]*)\"[^>]*>", drawn)
    assert head is not None
    opened = (
        f'<svg class="panel" xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{head[1]}" '
        f'width="100%" role="img" aria-label="{html.escape(label)}">'
    )
    return opened + drawn[head.end() :].strip()


def png(made: Any) -> bytes:
    out = io.BytesIO()
    made.savefig(out, format="png", dpi=144, metadata={"Software": None})
    return out.getvalue()


def charts(runs: Sequence[dict[str, Any]], names: Sequence[str] | None = None) -> list[Chart]:
    """Throughput, latency and power, as far as there is something to show, of one run or of several laid over each other.

    `names` are what legends call several runs; by default their titles. Loads of other lengths, data sets or rates are curves of
    their own. Invalid rungs are hollow, failed ones a cross at the axis, repeats a whisker from the lowest to the highest.
    """
    import matplotlib

    titles = [middle(plain(name), 30) for name in (names or map(title, runs))]
    ladders = [rows(run) for run in runs]
    axis, x = axis_of(ladders)
    drawn = curves(ladders, titles, x)
    made = []
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in another script: the page's own font has it
        for name in chart_names(runs):
            parts = panels(name, ladders, drawn, axis)
            with matplotlib.rc_context({"svg.hashsalt": name}):
                panes = [svg(figure(SENTINEL, [part], drawn), f"{name}{i}", part.title) for i, part in enumerate(parts)]
            made.append(Chart(name, CAPTIONS[name], "\n".join(panes), png(figure(LIGHT, parts, drawn))))
    return made


# --- the page ---------------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A cell of a table that sorts by `sort`, a number, or by its text where there is none."""

    text: str
    sort: float | str | None = None
    share: float | None = None  # of the column's largest value, drawn as a bar
    spread: str = ""


class Column(NamedTuple):
    """`group` stands above columns of one kind; `short` is the heading, `about` the meaning of both together."""

    group: str
    short: str
    about: str
    cells: list[Cell]
    text: bool = False


def cell_of(stat: Stat, largest: float | None, spread: bool) -> Cell:
    share = stat.median / largest if largest and stat.median is not None else None
    half = "" if not stat.half or not spread else f"±{number(stat.half, ',')}"
    return Cell(number(stat.median, ","), stat.median, share, half)


def stat_column(
    group: str,
    short: str,
    about: str,
    ladder: Sequence[Row],
    of: Callable[[Row], Stat],
    bar: bool = False,
    spread: bool = False,
) -> Column:
    """A figure by row; `bar` draws it, `spread` tells the repeats' spread."""
    stats = [of(row) for row in ladder]
    largest = max((stat.median for stat in stats if stat.median is not None), default=None) if bar else None
    return Column(group, short, about, [cell_of(stat, largest, spread) for stat in stats])


def share_cell(value: float | None) -> Cell:
    return Cell(percent(value), value, value)


def load_columns(ladder: Sequence[Row]) -> list[Column]:
    """What names a row."""
    columns = [
        Column(
            "Load",
            "at once",
            "requests at once",
            [Cell(f"{row.load['concurrency']:,}", row.load["concurrency"]) for row in ladder],
        )
    ]
    if any(row.load.get("request_rate") is not None for row in ladder):
        rates = [row.load.get("request_rate") for row in ladder]
        cells = [Cell("–" if rate is None else f"{rate:g}", math.inf if rate is None else rate) for rate in rates]
        columns.append(Column("Load", "req/s", "requests sent a second", cells))
    sizes = [(row.load.get("input_len") or 0) + (row.load.get("output_len") or 0) for row in ladder]
    cells = [Cell(lengths(row.load), size) for row, size in zip(ladder, sizes, strict=True)]
    return [*columns, Column("Load", "in/out", "tokens in and out of a request", cells)]


# The figures of the table whose spread is told; the CSV has every repeat.
SPREAD = (OUTPUT, ("ttft_ms", "median"), ("tpot_ms", "median"))


def rung_table(ladder: Sequence[Row]) -> list[Column]:
    """The table of loads."""

    def column(group: str, short: str, about: str, *path: str) -> Column:
        return stat_column(group, short, about, ladder, metric(*path), path == OUTPUT, path in SPREAD)

    places = {"": 0, "invalid": 2, "failed": 3, "not run": 4}
    return [
        *load_columns(ladder),
        column("Tokens a second", "output", "output tokens a second", *OUTPUT),
        column("Tokens a second", "total", "input and output tokens a second", *TOTAL),
        column("TTFT, ms", "p50", "time to the first token, median, ms", "ttft_ms", "median"),
        column("TTFT, ms", "p99", "time to the first token, 99th percentile, ms", "ttft_ms", "p99"),
        column("TPOT, ms", "p50", "time per output token, median, ms", "tpot_ms", "median"),
        column("TPOT, ms", "p99", "time per output token, 99th percentile, ms", "tpot_ms", "p99"),
        column("ITL, ms", "p99", "inter-token latency, 99th percentile, ms", "itl_ms", "p99"),
        column("E2E, ms", "p50", "whole request, median, ms", "e2e_ms", "median"),
        column("Requests", "a second", "requests answered a second", "request_throughput_per_s"),
        Column(
            "Requests",
            "done",
            "requests answered of those asked for",
            [Cell(done(row), row.done()[0]) for row in ladder],
        ),
        Column("", "verdict", "verdict", [Cell(row.mark or "valid", places.get(row.mark, 1)) for row in ladder], True),
    ]


def known(columns: Sequence[Column]) -> list[Column]:
    """Columns that have something to say; the first ones, which name the row, always do."""
    return [
        column for column in columns if column.group in ("Load", "") or any(cell.text != "–" for cell in column.cells)
    ]


def power_table(ladder: Sequence[Row]) -> list[Column]:
    """The table of telemetry."""

    def column(group: str, short: str, about: str, *path: str) -> Column:
        return stat_column(group, short, about, ladder, watched(*path))

    def shares(group: str, short: str, about: str, *path: str, whole: float = 1) -> Column:
        values = [row.stat(*path, part="telemetry").median for row in ladder]
        return Column(group, short, about, [share_cell(None if value is None else value / whole) for value in values])

    windows = [(row.counted[0].get("telemetry") or {}) for row in ladder]
    spans = [(w.get("window") or {}) for w in windows]
    window = [
        Cell(
            f"{span.get('kind', '–')}, {number((dig(span, 'to_s') or 0) - (dig(span, 'from_s') or 0))} s",
            dig(span, "to_s"),
        )
        for span in spans
    ]
    return known(
        [
            *load_columns(ladder),
            Column("Read", "window", "part of the load that the figures are of", window, True),
            Column(
                "Read", "samples", "samples", [Cell(str(w.get("samples", "–")), dig(w, "samples")) for w in windows]
            ),
            column("Power of all GPUs, W", "mean", "mean power, W", "power_w", "mean"),
            column("Power of all GPUs, W", "peak", "highest power, W", "power_w", "peak"),
            column("Power of all GPUs, W", "limit", "power limit, W", "limit_w"),
            shares("Power of all GPUs, W", "of limit", "mean power over the limit", "power_of_limit"),
            column("Energy", "tok/J", "output tokens a joule", "output_tokens_per_j"),
            shares("GPUs", "busy", "mean GPU utilisation", "utilization_percent", "mean", whole=100),
            shares("Host", "CPU", "mean CPU use", "host", "cpu_percent", "mean", whole=100),
            column("Engine", "running", "requests running, mean", "engine", "running", "mean"),
            column("Engine", "queued", "requests queued, mean", "engine", "queued", "mean"),
            shares("Engine", "KV peak", "KV cache in use, highest", "engine", "token_usage", "peak"),
            column("Engine", "taken back", "requests taken back for want of KV cache", "engine", "retracted"),
        ]
    )


def gpu_table(ladder: Sequence[Row]) -> list[Column]:
    """Each card in each load, from the first repeat that counts."""
    seen = [(row, gpu) for row in ladder for gpu in (row.counted[0].get("telemetry") or {}).get("gpus") or []]

    def column(group: str, short: str, about: str, *path: str) -> Column:
        values = [dig(gpu, *path) for _, gpu in seen]
        return Column(group, short, about, [Cell(number(value, ","), value) for value in values])

    slow = [gpu.get("throttle") or {} for _, gpu in seen]
    throttle = [
        ", ".join(f"{plain(why)} {percent(share)}" for why, share in sorted(why_not.items())) for why_not in slow
    ]
    return [
        *load_columns([row for row, _ in seen]),
        Column("GPU", "index", "GPU's index", [Cell(str(gpu["index"]), gpu["index"]) for _, gpu in seen]),
        Column("GPU", "name", "GPU's name", [Cell(plain(gpu["name"])) for _, gpu in seen], True),
        column("Power, W", "mean", "mean power, W", "power_w", "mean"),
        column("Power, W", "peak", "highest power, W", "power_w", "peak"),
        Column(
            "Power, W",
            "of limit",
            "mean power over the limit",
            [share_cell(dig(gpu, "power_of_limit")) for _, gpu in seen],
        ),
        column("", "busy, %", "mean utilisation, percent", "utilization_percent", "mean"),
        column("", "SM, MHz", "mean SM clock, MHz", "sm_clock_mhz", "mean"),
        column("", "°C, peak", "highest temperature, degrees Celsius", "temperature_c", "peak"),
        column("", "MiB, peak", "most memory in use, MiB", "memory_mib", "peak"),
        Column(
            "",
            "throttled",
            "reasons for throttling and their share of samples",
            [Cell(t or "–") for t in throttle],
            True,
        ),
    ]


def groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Headings above columns and how many each spans."""
    found: list[tuple[str, int]] = []
    for column in columns:
        if found and found[-1][0] == column.group:
            found[-1] = (column.group, found[-1][1] + 1)
        else:
            found.append((column.group, 1))
    return found


def key_figures(run: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The best valid rung in a few figures: (value, unit, name)."""
    top = best(rows(run))
    if top is None:
        return []
    ttft, tpot, half = top.stat("ttft_ms", "median"), top.stat("tpot_ms", "median"), top.stat(*OUTPUT).half
    spread = "" if not half else f"±{number(half, ',')} "
    found = [
        (number(top.stat(*OUTPUT).median, ","), f"{spread}tok/s", "output"),
        (number(top.stat(*TOTAL).median, ","), "tok/s", "total, with input"),
        (
            f"{number(ttft.median, ',')} / {number(top.stat('ttft_ms', 'p99').median, ',')}",
            "ms",
            "to the first token, p50 / p99",
        ),
        (
            f"{number(tpot.median, ',')} / {number(top.stat('tpot_ms', 'p99').median, ',')}",
            "ms",
            "each token after it, p50 / p99",
        ),
        (number(top.stat("output_tokens_per_j", part="telemetry").median), "tok/J", "output tokens a joule"),
    ]
    return [figure for figure in found if figure[0].strip("– /")]


def environment() -> Any:
    """Templates of pages, with what they ask of this module; everything is escaped but what is Markup."""
    import jinja2
    import markupsafe

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(TEMPLATES)),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters.update(number=number, percent=percent, day=day, plain=plain, groups=groups)
    made.globals.update(safe_svg=markupsafe.Markup, ink_light=LIGHT, letters=letter)
    return made


def page(run: dict[str, Any], drawn: Sequence[Chart] | None = None) -> str:
    """report.html: one file that needs nothing else, with links to the files beside it. `drawn`: its charts."""
    ladder = rows(run)
    powered = power_rows(ladder)
    given = settings(run["server"].get("given"))
    return environment().get_template("report.html.j2").render(
        run=run,
        title=title(run),
        served=served(run),
        warning=partly(run),
        headline=headline(run),
        scaling=scaling(run),
        best=best(ladder),
        best_name=lengths(top.load) if (top := best(ladder)) else "",
        key_figures=key_figures(run),
        verdicts=verdicts(run),
        charts=charts([run]) if drawn is None else drawn,
        manners=list(dict.fromkeys(manner(row.load) for row in ladder)),
        rungs=known(rung_table(ladder)),
        marks=[row.mark for row in ladder],
        repeated=any(row.stat(*OUTPUT).n > 1 for row in ladder),
        faults=faults(ladder),
        findings=findings(ladder),
        remarks=remarks(ladder),
        power=power_table(powered) if powered else [],
        gpus=gpu_table(powered) if powered else [],
        facts=facts(run),
        tuning=plain((run.get("tuning") or {}).get("summary", "")),
        fallbacks=fallbacks(run),
        given=given,
        variables=settings(run["server"].get("environment")),
        resolved=settings(run["server"]["arguments"]),
        commands=commands(run),
        meanings=MEANINGS,
    )  # fmt: skip


# --- comparisons ------------------------------------------------------------------------------------------------------

# Left out of a terminal's comparison; the page has them.
SPARED = ("total throughput", "input throughput", "request throughput", "TPOT p99", "ITL p99")


def letter(place: int) -> str:
    """A, B, … Z, then 27 and so on."""
    return chr(ord("A") + place) if place < 26 else str(place + 1)


def load_names(rungs: Sequence[dict[str, Any]]) -> list[str]:
    """The loads of a comparison as a person names them."""
    found = names([Row(place, rung["load"], [], [], "") for place, rung in enumerate(rungs)])
    short = [found[place] for place in range(len(rungs))]
    return [
        f"{name}, {lengths(rung['load'])}" if name == f"{rung['load']['concurrency']} at once" else name
        for name, rung in zip(short, rungs, strict=True)
    ]


def times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}x"


def between(entry: dict[str, Any], place: int, separator: str = "") -> str:
    """A figure of one run with its spread."""
    spread = entry["spreads"][place]
    low, high = spread or (None, None)
    return ranged(Stat(entry["medians"][place], low, high, entry["n"][place]), separator)


def differing(c: dict[str, Any]) -> list[dict[str, Any]]:
    """Differences, those that somebody set before what followed by itself."""
    return sorted(c["differences"], key=lambda entry: not entry["set"])


def sides(entry: dict[str, Any]) -> str:
    """What each run has, by its letter."""
    return "; ".join(f"{letter(place)} {plain(value)}" for place, value in enumerate(entry["values"]))


def comparison_text(c: dict[str, Any], width: int = 80) -> str:
    """The terminal's comparison: what differs, the ratios of each load, and whether it may be compared."""
    runs = c["runs"]
    lines: list[str] = []
    for place, run in enumerate(runs):
        kind = ", published figures" if run["kind"] == "baseline" else ""
        lines += wrapped(f"{letter(place)}  {plain(run['title'])}, {day(run['started'])}{kind}", width, rest="   ")
    lines.append("")
    for sentence in c["summary"]:
        lines += wrapped(plain(sentence), width)
    for head, wanted in (("Set differently", True), ("Different without being set", False)):
        found = [entry for entry in c["differences"] if bool(entry["set"]) == wanted]
        if found:
            lines += ["", f"{head}:"]
        for entry in found:
            lines += wrapped(f"{plain(entry['name'])} ({entry['group']}): {sides(entry)}", width, "  ", "    ")
    folded = c.get("defaults") or {}
    changed, some = folded.get("changed") or [], folded.get("only_in_some") or 0
    if changed or some:
        said = f"Defaults of the releases: {len(changed)} differ; {some} options are not in all of them."
        lines += ["", *wrapped(said, width)]
        for entry in changed[:DEFAULTS_SHOWN]:
            lines += wrapped(f"{plain(entry['name'])}: {sides(entry)}", width, "  ", "    ")
        if len(changed) > DEFAULTS_SHOWN:
            lines.append("  … the rest is on the page")
    for name, rung in zip(load_names(c["rungs"]), c["rungs"], strict=True):
        lines += ["", *wrapped(f"{name}, {manner(rung['load'])}", width)]
        for reason in rung["reasons"]:
            lines += wrapped(plain(reason), width, "  not comparable: " if not rung["comparable"] else "  ", "    ")
        shown = [entry for entry in rung["figures"] if entry["name"] not in SPARED] or rung["figures"]
        for place in range(1, len(runs)):
            columns = {
                f"  {letter(place)} to A": [f"  {plain(entry['name'])}, {entry['unit']}" for entry in shown],
                "A": [between(entry, 0) for entry in shown],
                letter(place): [between(entry, place) for entry in shown],
                "ratio": [times(entry["ratios"][place]) for entry in shown],
                "": [plain(entry["verdicts"][place]).removesuffix(": no verdict") for entry in shown],
            }
            if shown:
                lines += fitted(columns, width, [], [f"  {letter(place)} to A", ""])
    lines += ["", "These runs can be compared." if c["comparable"] else "These runs cannot be compared."]
    for reason in c["reasons"]:
        lines += wrapped(plain(reason), width, "- ", "  ")
    return "\n".join(lines) + "\n"


def comparison_markdown(c: dict[str, Any]) -> str:
    """The comparison as GitHub markdown, without charts."""
    runs = c["runs"]
    letters = [letter(place) for place in range(len(runs))]
    lines = ["# Comparison", ""]
    lines += md_table(
        ["", "run", "started", ""],
        [
            [
                letter(place),
                md(run["title"]),
                md(day(run["started"])),
                "published figures" if run["kind"] == "baseline" else "",
            ]
            for place, run in enumerate(runs)
        ],
        4,
    )
    lines += ["", *(md(sentence) + "\n" for sentence in c["summary"])]
    lines += ["**Can be compared.**" if c["comparable"] else "**Cannot be compared.**", ""]
    lines += [*(f"- {md(reason)}" for reason in c["reasons"]), ""]
    if c["differences"]:
        table = [
            [md(e["group"]), md(e["name"]), "yes" if e["set"] else "", *map(md, e["values"])] for e in differing(c)
        ]
        lines += ["## What differs", "", *md_table(["", "what", "set", *letters], table, 3 + len(runs)), ""]
    folded = (c.get("defaults") or {}).get("changed") or []
    if folded:
        lines += ["<details><summary>Defaults of the releases that differ</summary>", ""]
        lines += [
            *md_table(["what", *letters], [[md(e["name"]), *map(md, e["values"])] for e in folded], 9),
            "",
            "</details>",
            "",
        ]
    lines += ["## Figures", ""] if c["rungs"] else []
    for name, rung in zip(load_names(c["rungs"]), c["rungs"], strict=True):
        lines += [f"### {md(name)}", "", *(f"- {md(reason)}" for reason in rung["reasons"]), ""]
        head = ["figure", "A"]
        for mark in letters[1:]:
            head += [mark, f"{mark}/A", "verdict"]
        table = []
        for entry in rung["figures"]:
            line = [f"{md(entry['name'])}, {entry['unit']}", between(entry, 0)]
            for place in range(1, len(runs)):
                line += [between(entry, place), times(entry["ratios"][place]), md(entry["verdicts"][place])]
            table.append(line)
        lines += [*md_table(head, table, 1), ""]
    return "\n".join(lines)


def tone(verdict: str) -> str:
    """good, bad or nothing, by the verdict's first word."""
    first = verdict.split(" ", 1)[0].strip(",:;(")
    return {"faster": "good", "slower": "bad"}.get(first, "")


def comparison_page(c: dict[str, Any], runs: Sequence[dict[str, Any]]) -> str:
    """The comparison as one file. `runs` are the run dicts in the order of c["runs"], for the charts."""
    letters = [letter(place) for place in range(len(c["runs"]))]
    return environment().get_template("comparison.html.j2").render(
        c=c,
        title=" and ".join(plain(run["name"]) for run in c["runs"]) if len(c["runs"]) < 3 else f"{len(c['runs'])} runs compared",
        charts=charts(runs, letters),
        differences=[(head, found) for head, wanted in (("Set differently", True), ("Different without being set", False))
                     if (found := [entry for entry in c["differences"] if bool(entry["set"]) == wanted])],
        rungs=list(zip(load_names(c["rungs"]), c["rungs"], strict=True)),
        between=between,
        times=times,
        tone=tone,
        bar=bar,
        manner=manner,
        meanings=MEANINGS,
    )  # fmt: skip


def bar(ratio: float | None) -> tuple[float, float] | None:
    """Where a ratio's bar begins and how wide it is, in percent of its cell: 1 is the middle, half and double the ends."""
    if not ratio or ratio <= 0:
        return None
    place = 50 + 50 * max(-1.0, min(1.0, math.log2(ratio)))
    return min(place, 50), abs(place - 50)


# --- files ------------------------------------------------------------------------------------------------------------


def write(folder: str | Path, run: dict[str, Any]) -> list[str]:
    """report.html, report.md, rungs.csv and charts/*.png below `folder`, each whole or as it was; their paths. Raises OSError."""
    place, drawn = Path(folder), charts([run])
    texts = {"report.html": page(run, drawn), "report.md": markdown(run), "rungs.csv": csv(run)}
    files = {name: text.encode() for name, text in texts.items()}
    files.update({f"charts/{chart.name}.png": chart.png for chart in drawn})
    for name, content in files.items():
        sglang_results.write(place / name, content)
    return [str(place / name) for name in files]
