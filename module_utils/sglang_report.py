# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""What a person sees of a measurement: text, markdown, CSV, charts and a page, of one run and of a comparison.

A run is run.json, schemas/run.schema.json version 2; a comparison is what sglang_runs.compare() makes. Nothing is judged here:
verdicts are the run's own. For the controller: needs jinja2, and matplotlib where charts are drawn.
"""

from __future__ import annotations

import csv as csv_format
import html
import io
import math
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import sglang_results, sglang_runs
from .sglang_charts import CAPTIONS, LIGHT, Chart, chart_names, charts, metric, split, watched
from .sglang_diagnose import SEVERITIES
from .sglang_rungs import (
    OUTPUT,
    TOTAL,
    Row,
    Stat,
    best,
    day,
    lengths,
    manner,
    names,
    number,
    percent,
    plain,
    power_rows,
    printable,
    ranged,
    rows,
    title,
)
from .sglang_runs import dig

TEMPLATES = Path(__file__).resolve().parents[1] / "roles" / "sglang_bench" / "templates"

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
        "The part of a load in which all places were taken; power and use are of it. \"Whole\" says that it could not be seen, "
        "so that the run-up and the end are counted as well.",
    ),
    ("Tokens per joule", "Generated tokens over the energy of all GPUs, from first request to last answer, without the host."),
    ("Invalid", "What was measured is not what was asked for. Its figures are shown and count for nothing."),
]  # fmt: skip


# --- words ------------------------------------------------------------------------------------------------------------


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
    every = split([row for row in rows(run) if row.valid]).values()
    series: list[Row] = max(every, key=len, default=[])
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
            column("Engine", "retracted", "requests retracted for want of KV cache", "engine", "retracted"),
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


def differing(c: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Differences under their headings: those that somebody set, and those that followed by themselves."""
    heads = (("Set differently", True), ("Different without being set", False))
    parts = [(head, [entry for entry in c["differences"] if bool(entry["set"]) == is_set]) for head, is_set in heads]
    return [(head, found) for head, found in parts if found]


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
    for head, found in differing(c):
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
            [md(e["group"]), md(e["name"]), "yes" if e["set"] else "", *map(md, e["values"])] for e in c["differences"]
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
        differences=differing(c),
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
