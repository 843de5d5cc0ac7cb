"""What a person sees of a measurement. The runs are recordings (data/runs/README.md); layout samples are made of them here."""

from __future__ import annotations

import copy
import csv
import functools
import io
import json
import re
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from ansible.module_utils import sglang_charts, sglang_runs
from ansible.module_utils import sglang_report as report

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data" / "runs"
H200, CPU_OLD, CPU_NEW = "h200-0.5.15.post1.json", "cpu-0.5.9.json", "cpu-0.5.23.json"
HOSTILE = "<script>alert(1)</script> | `x` \x1b[31m $y^2$ \"'&"


def sample(name: str) -> dict[str, Any]:
    return json.loads((DATA / name).read_text())


def scaled(value: Any, factor: float) -> Any:
    """Every number of a tree times `factor`: for layout only."""
    if isinstance(value, dict):
        return {key: scaled(item, factor) for key, item in value.items()}
    return value * factor if isinstance(value, float) else value


def eight_cards() -> dict[str, Any]:
    """A LAYOUT SAMPLE, no measurement: the H200 recording with eight cards, three repeats, two lengths and every kind of rung."""
    run = sample(H200)
    run.update(profile="layout_sample", host="layout", repeats=3, valid=False)
    (source,) = (rung for rung in run["rungs"] if rung["load"]["concurrency"] == 64)
    rungs = []
    for index, (concurrency, lengths) in enumerate(
        [(c, n) for n in ((1024, 256), (8192, 1024)) for c in (1, 8, 64, 256, 1024)]
    ):
        for repeat in range(3):
            rung = copy.deepcopy(source)
            factor = (concurrency / 64) ** 0.6 * (1 + 0.03 * repeat) * (1 if lengths[0] == 1024 else 0.55)
            rung["metrics"] = {**rung["metrics"], **scaled(rung["metrics"], factor)}
            for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
                rung["metrics"][name] = {key: (value or 40.0) for key, value in rung["metrics"][name].items()}
            rung["load"].update(concurrency=concurrency, input_len=lengths[0], output_len=lengths[1])
            card = rung["telemetry"]["gpus"][0]
            rung["telemetry"]["gpus"] = [
                {**card, "index": number, "throttle": {"sw_power_cap": 0.25}} for number in range(8)
            ]
            rung["telemetry"].update(
                missing=[], engine={"running": {"mean": 61.0}, "token_usage": {"peak": 0.97}, "retracted": 3}
            )
            command = ["/opt/sglang/releases/x/venv/bin/python", "-m", "sglang.benchmark.serving", "--seed", str(index)]
            rung.update(index=index, repeat=repeat, notes=[], command=command)
            rungs.append(rung)
    for rung in rungs:
        if rung["index"] == 3:
            rung.update(valid=False, problems=["12 of 256 requests failed; the first error: HTTP 503"])
        if rung["index"] == 4:
            rung.update(
                status="failed",
                valid=False,
                metrics=None,
                telemetry=None,
                problems=["the server died: CUDA out of memory"],
            )
        if rung["index"] == 9:
            rung.update(
                status="not_run",
                valid=False,
                metrics=None,
                telemetry=None,
                problems=["the ladder was broken off before it"],
            )
        if rung["index"] in (2, 7):
            rung["findings"] = [
                {
                    "id": "starved",
                    "severity": "warning",
                    "cause": "The GPUs were busy all the time at 29 % of their power limit.",
                    "remedy": "Raise max-running-requests, and look at the tuning of the kernels.",
                }
            ]
    run["rungs"] = rungs
    run["answers"] = {
        "before": {"passed": True, "summary": "5 of 5 questions answered right"},
        "after": {"passed": False, "summary": "2 of 5 questions answered wrong: the capital of France"},
    }
    run["tuning"] = {
        "verdict": "partial",
        "proved": False,
        "summary": "Autotuning ran on all ranks, and 3 shapes fell back.",
        "fallbacks": [{"op": "trtllm::fused_moe::gemm1", "calls": 12, "accepted": ""}],
    }
    run["server"]["given"] = {"tp": 8, "moe-runner-backend": "flashinfer_cutlass", "json": "x" * 400}
    run["server"]["environment"] = {"NCCL_P2P_LEVEL": "SYS"}
    run["deployment"] = {"release": "layout-1a2b3c", "patches": [{"name": "moe-tuning", "status": "applied"}]}
    run["node"] = {
        "gpus": [{"name": "NVIDIA H200"}] * 8,
        "driver": {"version": "580.159.04", "cuda": "13.0"},
        "cpus": 192,
        "memory_mib": {"total": 1547000},
    }
    return run


def broken_off() -> dict[str, Any]:
    """A LAYOUT SAMPLE: a ladder whose last two loads were not run."""
    run = sample(H200)
    run.update(finished=None, valid=False)
    for rung in run["rungs"][1:]:
        rung.update(status="not_run", valid=False, metrics=None, telemetry=None, problems=["not run yet"], command=[])
    return run


def forty() -> dict[str, Any]:
    """A LAYOUT SAMPLE: the H200 recording's last load forty times."""
    run = sample(H200)
    source = run["rungs"][-1]
    run["rungs"] = []
    for index in range(40):
        rung = copy.deepcopy(source)
        rung["index"] = index
        rung["load"]["concurrency"] = (index + 1) * 13
        run["rungs"].append(rung)
    return run


def hostile() -> dict[str, Any]:
    """A LAYOUT SAMPLE: every text that somebody else can write."""
    run = sample(H200)
    run.update(host=HOSTILE, profile=HOSTILE, label=HOSTILE, problems=[HOSTILE])
    run["target"].update(served_model=HOSTILE, model_path="/" + "m" * 3000)
    run["server"].update(given={HOSTILE: HOSTILE}, environment={"A": HOSTILE})
    run["server"]["arguments"][HOSTILE] = [HOSTILE]
    run["tuning"] = {"verdict": HOSTILE, "proved": False, "summary": HOSTILE, "fallbacks": [HOSTILE, {"op": HOSTILE}]}
    run["answers"] = {"before": {"passed": False, "summary": HOSTILE}}
    run["node"] = {"gpus": [{"name": HOSTILE}], "os": HOSTILE}
    run["deployment"] = {"patches": [{"name": HOSTILE}], "release": HOSTILE}
    for rung in run["rungs"]:
        rung["load"]["dataset"] = HOSTILE
        rung.update(problems=[HOSTILE], notes=["=1+1"], valid=False, command=["python", "x" * 5000, HOSTILE])
        rung["findings"] = [{"id": HOSTILE, "severity": "error", "cause": HOSTILE, "remedy": HOSTILE}]
        rung["telemetry"]["missing"] = [HOSTILE]
        rung["telemetry"]["gpus"][0].update(name=HOSTILE, throttle={HOSTILE: 0.5})
    return run


def empty() -> dict[str, Any]:
    """A LAYOUT SAMPLE: a run that was begun and has nothing."""
    return {**sample(CPU_NEW), "rungs": [], "finished": None, "valid": False}


LAYOUTS = {
    "h200": lambda: sample(H200),
    "cpu-0.5.9": lambda: sample(CPU_OLD),
    "cpu-0.5.23": lambda: sample(CPU_NEW),
    "eight_cards": eight_cards,
    "broken_off": broken_off,
    "forty": forty,
    "hostile": hostile,
    "empty": empty,
}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def run(layout: str) -> dict[str, Any]:
    return LAYOUTS[layout]()


@functools.cache
def charts_of(layout: str) -> list[report.Chart]:
    """Drawn once for all tests."""
    return report.charts([LAYOUTS[layout]()])


@functools.cache
def page_of(layout: str) -> str:
    return report.page(LAYOUTS[layout](), charts_of(layout))


def schema_errors(run: dict[str, Any]) -> list[str]:
    schema = json.loads((ROOT / "schemas" / "run.schema.json").read_text())
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(run)]


def test_runs_are_what_the_schema_says(run: dict[str, Any]) -> None:
    assert schema_errors(run) == []


# --- words and figures


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0, "0"), (0.0123, "0.012"), (2.6713, "2.67"), (84.95, "85.0"), (6138.17, "6138"), (0.5, "0.50")],
)
def test_numbers_have_three_figures(value: float | None, shown: str) -> None:
    assert report.number(value) == shown


def test_repeats_are_a_median_with_half_the_range_over_the_valid_ones() -> None:
    run = sample(H200)
    source = run["rungs"][2]
    run["rungs"] = []
    for repeat, (output, valid) in enumerate([(100.0, True), (110.0, True), (130.0, True), (900.0, False)]):
        rung = copy.deepcopy(source)
        rung.update(repeat=repeat, valid=valid)
        rung["metrics"]["output_throughput_tokens_per_s"] = output
        run["rungs"].append(rung)
    (row,) = report.rows(run)
    assert row.stat(*report.OUTPUT) == (110.0, 100.0, 130.0, 3)
    assert report.ranged(row.stat(*report.OUTPUT)) == "110 ±15.0"
    assert row.mark == "3/4 valid"
    assert "110 ±15.0" in report.text(run)
    assert "110 ±15.0" in report.markdown(run)


def test_an_invalid_rung_shows_its_figures_and_is_never_the_headline() -> None:
    run = sample(H200)
    run["rungs"][2].update(valid=False, problems=["256 output tokens instead of 512"])
    text = report.text(run)
    assert "6138" in text
    assert "invalid" in text
    assert "256 output tokens instead of 512." in text
    assert report.headline(run).startswith("Output 2,265 tok/s at 8 requests at once, 256 tokens in and 128 out")


def test_headline_says_when_nothing_is_valid() -> None:
    assert report.headline(hostile()) == "No load gave a valid figure."
    assert report.headline(empty()) == "No load gave a valid figure."


def test_scaling_is_of_one_kind_of_load() -> None:
    assert report.scaling(sample(H200)).startswith("From 1 to 64 requests at once (256/128) output rose 22.9 times")
    run = sample(H200)
    run["rungs"][0]["load"]["input_len"] = 999
    assert report.scaling(run).startswith("From 8 to 64 ")
    assert report.scaling(sample(CPU_NEW)) == ""


def test_verdicts_say_what_was_not_looked_at() -> None:
    said = [(verdict.state, verdict.text) for verdict in report.verdicts(sample(H200))]
    assert said == [
        ("good", "valid: 3 of 3 loads valid"),
        ("unknown", "answers not checked before"),
        ("unknown", "answers not checked after"),
        ("unknown", "tuning: not looked at"),
        ("unknown", "prefix cache: not told"),
    ]
    states = {verdict.text: verdict.state for verdict in report.verdicts(eight_cards())}
    assert states["answers right before"] == "good"
    assert states["answers wrong after"] == "bad"
    assert states["tuning: partial"] == "warn"


@pytest.mark.parametrize(("share", "state"), [(0.0, "good"), (0.007, "good"), (0.05, "warn"), (0.4, "warn")])
def test_a_warm_cache_is_said(share: float, state: str) -> None:
    run = sample(H200)
    run["rungs"][1]["metrics"]["cached_token_ratio"] = share
    assert report.cache(report.rows(run)).state == state


def test_a_ladder_of_a_gpu_is_shown_with_its_power() -> None:
    """What bench.yml kept of one H200, three times over three loads."""
    run = sample("h200-ladder-0.5.15.post1.json")
    assert not schema_errors(run)
    shown = report.text(run)
    assert "7,918 tok/s at 128 requests" in shown and "543     683      700      78 %" in shown
    assert {verdict.text: verdict.state for verdict in report.verdicts(run)}["prefix cache cold"] == "good"


def test_control_characters_do_not_pass() -> None:
    assert "\x1b" not in report.plain(HOSTILE)
    assert report.plain("a\n\tb") == "a b"


# --- text


def test_text_is_within_eighty_columns(run: dict[str, Any]) -> None:
    for line in report.text(run).splitlines():
        assert len(line) <= 80, line
        assert line.isprintable()


def test_text_of_the_recording_has_its_figures() -> None:
    lines = report.text(sample(H200)).splitlines()
    assert "  64  256/128       6138        18415   0/1393  8.49/12.6  256/256" in lines
    assert "  64  256/128     202     255      700      29 %      17 %   30.3" in lines
    assert any("brought no text" in line or "TTFT is 0 for more than half" in line for line in lines)


def test_a_broken_ladder_is_said_first() -> None:
    text = report.text(broken_off())
    assert text.index("Only partly there: 1 of 3 loads were run.") < text.index("conc ")
    assert "Not run: 8 at once; 64 at once. not run yet." in text.replace("\n  ", " ")


def test_text_has_finding_remedy_tuning_and_gates() -> None:
    text = " ".join(report.text(eight_cards()).split())
    assert "Warning starved, at 64 at once, 1024/256; 64 at once, 8192/1024: The GPUs were busy" in text
    assert "Remedy: Raise max-running-requests" in text
    assert "Tuning: Autotuning ran on all ranks" in text
    assert "Answers WRONG after the loads: 2 of 5 questions" in text
    assert "Failed: 1024 at once, 1024/256" in text
    assert text.count("12 of 256 requests failed") == 1, "the same reason is said once"


# --- markdown, CSV


def test_markdown_shows_hostile_text_as_text() -> None:
    markdown = report.markdown(hostile())
    outside_code = re.sub(r"(`+) ?.*?\1", "", markdown)
    assert "<script>" not in outside_code
    assert "\x1b" not in markdown
    for line in markdown.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 8, 9, 10), line


def test_markdown_names_only_charts_that_are_written(run: dict[str, Any], tmp_path: Path) -> None:
    paths = report.write(tmp_path, run)
    named = set(re.findall(r"\(charts/(\w+)\.png\)", (tmp_path / "report.md").read_text()))
    assert named == {Path(path).stem for path in paths if path.endswith(".png")}
    assert sorted(map(str, tmp_path.rglob("*.*"))) == sorted(paths), "no half-written file is left"


def test_csv_has_a_line_a_measured_rung_and_units() -> None:
    lines = list(csv.DictReader(io.StringIO(report.csv(sample(H200)))))
    assert [line["concurrency"] for line in lines] == ["1", "8", "64"]
    assert float(lines[2]["output_throughput_tokens_per_s"]) == pytest.approx(6138.17, abs=0.01)
    assert float(lines[2]["tpot_p99_ms"]) == pytest.approx(12.571, abs=0.001)
    assert float(lines[2]["power_limit_w"]) == 700
    assert len(list(csv.DictReader(io.StringIO(report.csv(eight_cards()))))) == 24
    assert len(list(csv.DictReader(io.StringIO(report.csv(broken_off()))))) == 1


def test_csv_leaves_what_is_not_there_empty_and_gives_no_formula() -> None:
    (line,) = csv.DictReader(io.StringIO(report.csv(sample(CPU_OLD))))
    assert line["power_mean_w"] == "" and line["ttft_p90_ms"] == "" and line["ttft_p99_ms"] != ""
    run = hostile()
    run["rungs"][0]["problems"] = ["=cmd()"]
    first = next(csv.DictReader(io.StringIO(report.csv(run))))
    assert first["problems"] == "'=cmd()"


# --- charts


def names_of(charts: list[report.Chart]) -> list[str]:
    return [chart.name for chart in charts]


def test_charts_are_there_as_far_as_there_is_something_to_show() -> None:
    assert names_of(charts_of("h200")) == ["throughput", "latency", "power"]
    assert names_of(charts_of("cpu-0.5.9")) == ["throughput", "latency"]
    assert charts_of("empty") == []


def test_svg_is_well_formed_in_the_pages_colours_with_real_text(layout: str) -> None:
    for chart in charts_of(layout):
        assert "#0a0b" not in chart.svg and "var(--s0)" in chart.svg and "var(--fg)" in chart.svg
        assert not re.search(r"(?<!&)#[0-9a-f]{6}\b", chart.svg), "a fixed colour"
        root = ElementTree.fromstring(f"<all>{chart.svg}</all>")
        panels = root.findall("{http://www.w3.org/2000/svg}svg")
        assert len(panels) == 2
        for panel in panels:
            assert panel.get("viewBox") and panel.get("width") == "100%" and panel.get("height") is None
            assert len(list(panel.iter("{http://www.w3.org/2000/svg}text"))) >= 5
        ids = re.findall(r'\bid="([^"]+)"', chart.svg)
        assert len(ids) == len(set(ids))
        for name in re.findall(r'(?:href="|url\()#([^")]+)', chart.svg):
            assert name in ids


def test_png_is_of_double_resolution_and_small(layout: str) -> None:
    for chart in charts_of(layout):
        width, height = struct.unpack(">II", chart.png[16:24])
        assert width == 4 * sglang_charts.WIDTH and height >= 2 * sglang_charts.HEIGHT
        assert len(chart.png) < 150_000


def test_charts_are_the_same_each_time() -> None:
    assert report.charts([sample(H200)]) == charts_of("h200")


def test_loads_of_other_lengths_are_never_on_one_line() -> None:
    run = eight_cards()
    axis, x = sglang_charts.axis_of([report.rows(run)])
    drawn = sglang_charts.curves([report.rows(run)], ["x"], x)
    assert [(curve.label, [row.load["concurrency"] for row in curve.rows]) for curve in drawn] == [
        ("1024/256", [1, 8, 64, 256, 1024]),
        ("8192/1024", [1, 8, 64, 256, 1024]),
    ]
    assert axis is sglang_charts.CONCURRENCY
    assert len({curve.colour for curve in drawn}) == 2


def test_a_trace_has_its_pace_and_a_curve_for_each_piece_of_it() -> None:
    run = sample(H200)
    for rung, (prompts, slowdown) in zip(run["rungs"], ((100, 1.0), (100, 4.0), (900, 4.0)), strict=True):
        rung["load"].update(
            dataset="trace", input_len=None, output_len=None, concurrency=64, prompts=prompts, trace_slowdown=slowdown
        )
    assert schema_errors(run) == []
    ladder = report.rows(run)
    assert len(report.split(ladder)) == 3
    assert [report.manner(row.load) for row in ladder[:2]] == [
        "trace, at recorded times",
        "trace, at recorded times x 4",
    ]
    labels = [curve.label for curve in sglang_charts.curves([ladder], ["x"], "concurrency")]
    assert len(set(labels)) == 3 and labels[2].endswith("900 requests")
    lines = list(csv.DictReader(io.StringIO(report.csv(run))))
    assert [(line["prompts"], line["trace_slowdown"]) for line in lines] == [
        ("100", "1.0"),
        ("100", "4.0"),
        ("900", "4.0"),
    ]


def test_loads_that_differ_in_requests_alone_are_told_apart() -> None:
    run = sample(H200)
    run["rungs"] = [copy.deepcopy(run["rungs"][0]) for _ in range(2)]
    for index, rung in enumerate(run["rungs"]):
        rung["index"], rung["load"]["prompts"] = index, 64 * (index + 1)
    names = report.names(report.rows(run))
    assert list(names.values()) == [f"1 at once, 256/128, {number} requests" for number in (64, 128)]
    # The comparison has as many loads as the report.
    assert len(sglang_runs.compare([run, copy.deepcopy(run)])["rungs"]) == len(report.rows(run)) == 2


def test_a_run_whose_end_was_not_kept_is_no_broken_one() -> None:
    run = sglang_runs.read(DATA.parent / "runs-1/0.5.9.json")
    assert run["finished"] == "" and report.partly(run) == ""
    assert "not finished" not in [verdict.text for verdict in report.verdicts(run)]
    assert "Only partly there" not in report.text(run) and "not finished" not in report.page(run, [])


def test_a_secret_that_was_blanked_stays_blank() -> None:
    run = sample(H200)
    run["server"]["environment"] = {"HF_TOKEN": "***"}
    assert "| `HF_TOKEN` | `***` |" in report.markdown(run)
    assert re.search(r"HF_TOKEN.{0,40}\*\*\*", report.page(run, []), re.DOTALL)


def test_a_warm_cache_is_one_thing_in_report_and_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    run = sample(H200)
    run["rungs"][1]["metrics"]["cached_token_ratio"] = 0.05
    monkeypatch.setattr(sglang_runs, "WARM", 0.1)
    assert report.cache(report.rows(run)).state == "good"


@pytest.mark.parametrize("part", ["output_len", "range_ratio", "dataset", "request_rate"])
def test_every_other_part_of_a_load_parts_lines(part: str) -> None:
    run = sample(H200)
    run["rungs"][1]["load"][part] = {"output_len": 7, "range_ratio": 0.5, "dataset": "prompts", "request_rate": 3.0}[
        part
    ]
    assert sorted(len(found) for found in report.split(report.rows(run)).values()) == [1, 2]


def test_a_ladder_of_rates_is_drawn_against_the_rate() -> None:
    run = sample(H200)
    for rung, rate in zip(run["rungs"], (1.0, 4.0, 16.0), strict=True):
        rung["load"].update(concurrency=256, request_rate=rate)
    axis, x = sglang_charts.axis_of([report.rows(run)])
    assert (axis, x) == (sglang_charts.RATE, "request_rate")
    (curve,) = sglang_charts.curves([report.rows(run)], ["x"], x)
    assert len(curve.rows) == 3
    assert "requests sent a second" in report.charts([run])[0].svg
    assert "req/s" in report.text(run)


def markers(svg: str, fill: str) -> int:
    """Points that are drawn with this fill: uses of a mark."""
    return len(re.findall(rf"<use [^>]*style=\"fill: {re.escape(fill)}", svg))


def test_an_invalid_point_is_hollow_and_a_failed_load_a_cross() -> None:
    run = sample(H200)
    sound = charts_of("h200")[0].svg
    run["rungs"][2].update(valid=False, problems=["x"])
    hollow = report.charts([run])[0].svg
    assert markers(sound, "var(--bg)") == 0
    assert markers(hollow, "var(--bg)") == 3  # output, total, and against the speed of one request
    run["rungs"][2].update(status="failed", metrics=None, telemetry=None)
    failed = report.charts([run])[0].svg
    cross = 'style="stroke: var(--fg); stroke-width: 2'
    assert cross not in sound and cross in failed


def test_repeats_have_whiskers() -> None:
    drawn = report.charts([eight_cards()])[0].svg
    assert len(re.findall("LineCollection", drawn)) > len(
        re.findall("LineCollection", report.charts([sample(H200)])[0].svg)
    )


def test_several_runs_have_a_colour_each_and_their_names() -> None:
    chart = report.charts([sample(CPU_OLD), sample(CPU_NEW)], ["old one", "new one"])[0]
    for word in ("old one", "new one", "var(--s0)", "var(--s1)"):
        assert word in chart.svg
    assert "var(--s2)" not in chart.svg


# --- the page


def test_page_is_one_small_file_that_asks_for_nothing(layout: str) -> None:
    page = page_of(layout)
    assert len(page.encode()) < 2_000_000
    assert not re.search(r"\b(?:src|srcset)=|@import|url\((?!#)", page)
    links = re.findall(r'<(?:a|link)\b[^>]*href="([^"]*)"', page)
    assert links and all(
        link.startswith("#") or link in ("data:,", "run.json", "rungs.csv", "report.md") for link in links
    )


def test_page_escapes_what_others_wrote() -> None:
    page = page_of("hostile")
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x1b" not in page


def test_page_tells_what_was_run() -> None:
    page = page_of("eight_cards")
    for word in (
        "8 × NVIDIA H200",
        "580.159.04 (CUDA 13.0)",
        "moe-tuning applied",
        "192",
        "1511 GiB",
        "NCCL_P2P_LEVEL",
    ):
        assert word in page


# --- comparisons


@pytest.fixture(scope="module")
def pair() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    runs = [sample(CPU_OLD), sample(CPU_NEW)]
    return sglang_runs.compare(copy.deepcopy(runs)), runs


def test_comparison_text_has_differences_then_ratios_then_whether(
    pair: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    text = report.comparison_text(pair[0])
    assert all(len(line) <= 80 for line in text.splitlines())
    places = [
        text.index(word) for word in ("sglang (versions): A 0.5.9; B 0.5.23", "0.85x", "These runs can be compared.")
    ]
    assert places == sorted(places)
    assert re.search(r"output throughput, tok/s +692 +585 +0.85x  one run each", text)


def test_comparison_in_markdown_and_page_have_the_ratio(pair: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    assert "| output throughput, tok/s | 692 | 585 | 0.85x | one run each: no verdict |" in report.comparison_markdown(
        pair[0]
    )
    page = report.comparison_page(*pair)
    assert "0.85x" in page and page.count('class="panel"') == 4
    assert len(page.encode()) < 2_000_000


def test_what_cannot_be_compared_has_its_reasons_and_no_ratio() -> None:
    runs = [sample(CPU_OLD), sample(H200)]
    c = sglang_runs.compare(copy.deepcopy(runs))
    text = report.comparison_text(c)
    assert "These runs cannot be compared." in text
    assert not re.search(r"\d\.\d\dx", text)
    assert all(len(line) <= 80 for line in text.splitlines())
    page = report.comparison_page(c, runs)
    assert "cannot be compared" in page and not re.search(r'class="ratio">\d', page)


def test_comparison_of_hostile_and_partial_runs_is_shown() -> None:
    runs = [hostile(), broken_off(), eight_cards()]
    c = sglang_runs.compare(copy.deepcopy(runs))
    assert all(len(line) <= 80 and line.isprintable() for line in report.comparison_text(c).splitlines())
    assert "<script>alert" not in report.comparison_page(c, runs)
    assert "<script>" not in report.comparison_markdown(c)


@pytest.mark.parametrize("path", sorted((ROOT / "baselines").glob("*.yml")), ids=lambda path: path.stem)
def test_a_comparison_with_published_figures_is_shown(path: Path) -> None:
    runs = [sglang_runs.baseline(path), sample(H200)]
    c = sglang_runs.compare(copy.deepcopy(runs))
    text = report.comparison_text(c)
    assert "published figures" in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "published figures" in report.comparison_markdown(c)
    # What is drawn is tested elsewhere; here it is that loads which state little have a curve and a name.
    ladders = [report.rows(run) for run in runs]
    assert all(curve.label for curve in sglang_charts.curves(ladders, ["A", "B"], sglang_charts.axis_of(ladders)[1]))


def test_a_page_with_published_figures_is_made() -> None:
    runs = [sglang_runs.baseline(path) for path in sorted((ROOT / "baselines").glob("*.yml"))] + [sample(H200)]
    page = report.comparison_page(sglang_runs.compare(copy.deepcopy(runs)), runs)
    assert page.count("published figures") == len(runs) - 1
    assert len(page.encode()) < 2_000_000


@pytest.mark.parametrize(
    ("ratio", "place"),
    [(1.0, (50, 0)), (2**0.5, (50, 25)), (0.5, (0, 50)), (100.0, (50, 50)), (None, None), (0.0, None)],
)
def test_a_ratio_is_a_bar_from_the_middle(ratio: float | None, place: tuple[float, float] | None) -> None:
    assert report.bar(ratio) == place


# --- files


def test_write_replaces_whole_files_and_says_what_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("old")
    paths = report.write(tmp_path, sample(H200))
    assert [str(Path(path).relative_to(tmp_path)) for path in paths] == [
        "report.html", "report.md", "rungs.csv", "charts/throughput.png", "charts/latency.png", "charts/power.png",
    ]  # fmt: skip
    assert (tmp_path / "report.md").read_text() == report.markdown(sample(H200))


def test_write_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "rungs.csv").mkdir()
    with pytest.raises(OSError, match="rungs.csv"):
        report.write(tmp_path, sample(CPU_NEW))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
