# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Charts of measurements: throughput, latency and power against the load, of one run or of several laid over each other.

For the controller: matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import sglang_runs
from .sglang_rungs import (
    OUTPUT,
    TOTAL,
    Row,
    Stat,
    lengths,
    middle,
    plain,
    power_rows,
    rows,
    title,
)

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
