"""Runs of both schemas, finding them, and what a comparison may say. On recorded runs: data/runs, data/runs-1."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ansible.module_utils import sglang_runs
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"
SCHEMA = json.loads((ROOT / "schemas/run.schema.json").read_text())
OLD, NEW = (DATA / f"runs-1/{release}.json" for release in ("0.5.9", "0.5.23"))
H200 = DATA / "runs/h200-0.5.15.post1.json"
SHAPE = {"runs", "comparable", "reasons", "differences", "defaults", "rungs", "summary"}
OUTPUT = "output_throughput_tokens_per_s"


def old() -> dict[str, Any]:
    return sglang_runs.read(OLD)


def new() -> dict[str, Any]:
    return sglang_runs.read(NEW)


def h200() -> dict[str, Any]:
    return sglang_runs.read(H200)


def named(run: dict[str, Any], name: str) -> dict[str, Any]:
    return {**copy.deepcopy(run), "source": {**run["source"], "name": name}}


def repeated(run: dict[str, Any], name: str, *factors: float) -> dict[str, Any]:
    """A real run's rungs again and again, all throughputs multiplied and latencies divided by each factor."""
    told = named(run, name)
    told["rungs"] = []
    for repeat, factor in enumerate(factors):
        for rung in copy.deepcopy(run["rungs"]):
            for key, value in rung["metrics"].items():
                if key.endswith("tokens_per_s"):
                    rung["metrics"][key] = value * factor
                elif key.endswith("_ms"):
                    rung["metrics"][key] = {n: v if v is None else v / factor for n, v in value.items()}
            rung["load"]["seed"] += 100 * repeat
            told["rungs"].append({**rung, "repeat": repeat})
    return told


def figure(comparison: dict[str, Any], name: str, rung: int = 0) -> dict[str, Any]:
    return next(one for one in comparison["rungs"][rung]["figures"] if one["name"] == name)


def reasons(one: dict[str, Any], other: dict[str, Any]) -> str:
    comparison = sglang_runs.compare([named(one, "a"), named(other, "b")])
    assert not comparison["comparable"]
    assert all(ratio is None for f in comparison["rungs"][0]["figures"] for ratio in f["ratios"][1:])
    return " | ".join(comparison["rungs"][0]["reasons"])


def row(comparison: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in comparison["differences"] if one["name"] == name]
    return found


# --- reading


@pytest.mark.parametrize("path", [OLD, NEW, *sorted((DATA / "runs").glob("*.json"))], ids=lambda path: path.name)
def test_every_run_is_read_as_schema_2(path: Path) -> None:
    run = sglang_runs.read(path)
    assert run.pop("source")["kind"] == "run"
    jsonschema.validate(run, SCHEMA)
    assert all(rung["metrics"][OUTPUT] > 0 for rung in run["rungs"])


def test_schema_1_keeps_what_it_said() -> None:
    run, raw = old(), json.loads(OLD.read_text())
    assert (run["id"], run["started"]) == ("20261129T185920Z-gpu-node", "2026-11-29T18:59:20Z")
    assert run["rungs"][0]["metrics"] == raw["rungs"][0]["metrics"]
    assert run["server"]["given"]["max-running-requests"] == "32" and run["server"]["given"]["enable-metrics"] is True
    assert run["rungs"][0]["client"]["module"] == "sglang.bench_serving"
    raw["rungs"][0].update(valid=False, problems=["1 of 32 requests failed"])
    run = sglang_runs.upgraded(raw)
    assert not run["valid"] and run["rungs"][0]["problems"] == ["1 of 32 requests failed"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": 3, "rungs": []}', "is of schema 3, and this release reads up to 2"),
        ('{"schema": true, "rungs": []}', "no run: expected `schema`"),
        ('{"rungs": []}', "no run: expected `schema`"),
        ("[1]", "no run: expected `schema`"),
        ('{"schema": 2, "rungs": [', "is no JSON"),
        ('{"schema": 2, "rungs": [NaN]}', "NaN is no number of JSON"),
        ('{"schema": 2, "rungs": []}', "not whole: KeyError"),
        ('{"schema": 1, "rungs": [{}], "started": "20261129T185920Z", "host": "x"}', "not whole: KeyError('load')"),
    ],
)
def test_what_is_no_run_is_said(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(sglang_runs.RunError) as caught:
        sglang_runs.read(tmp_path)
    assert said in str(caught.value) and str(tmp_path) in str(caught.value)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no", tmp_path / "no.yml"):
        with pytest.raises(sglang_runs.RunError, match="There is no .*Expected"):
            sglang_runs.read(path)
    (tmp_path / "run.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(sglang_runs.RunError, match="cannot be read"):
        sglang_runs.read(tmp_path)


def test_words_of_a_command_line() -> None:
    words = [
        "python",
        "-m",
        "sglang.launch_server",
        "--tp",
        "8",
        "--enable-metrics",
        "--bs",
        "1",
        "2",
        "--a=b",
        "--low",
        "-1",
    ]
    told = {"tp": "8", "enable-metrics": True, "bs": ["1", "2"], "a": "b", "low": "-1"}
    assert sglang_runs.words_given(words) == told


# --- finding


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    for profile, folder in (
        ("glm52", "20261129T100000Z-gpu-node"),
        ("glm52", "20261130T100000Z-gpu-node"),
        ("kimi", "20261128T100000Z-other"),
    ):
        (tmp_path / profile / folder).mkdir(parents=True)
        (tmp_path / profile / folder / "run.json").write_text("{}")
    (tmp_path / "compare/20261201T100000Z").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("latest", "glm52/20261130T100000Z-gpu-node"),
        ("latest~2", "kimi/20261128T100000Z-other"),
        ("glm52/latest", "glm52/20261130T100000Z-gpu-node"),
        ("glm52/latest~1", "glm52/20261129T100000Z-gpu-node"),
        ("20261128T100000Z-other", "kimi/20261128T100000Z-other"),
        ("kimi/20261128T100000Z-other", "kimi/20261128T100000Z-other"),
    ],
)
def test_names_of_runs(name: str, where: str, kept: Path) -> None:
    assert sglang_runs.find(name, kept) == kept / where


def test_paths_and_baselines_are_names(kept: Path) -> None:
    folder = kept / "kimi/20261128T100000Z-other"
    assert sglang_runs.find(str(folder), kept) == folder
    assert sglang_runs.find(str(OLD), kept) == OLD
    for name in ("baseline:glm5-nvfp4", "glm5-nvfp4"):
        assert sglang_runs.find(name, kept) == ROOT / "baselines/glm5-nvfp4.yml"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("glm25/latest", "Did you mean glm52/latest"),
        ("kimi", "Did you mean kimi/latest"),
        ("glm52/latest~2", "has 2 runs of glm52. bench.yml makes one"),
        ("20261128T100000Z-othr", "Did you mean 20261128T100000Z-other"),
        ("baseline:k2-thinking", "Did you mean k2-thinking-nvfp4"),
        ("zzz", "is no run: no such path"),
        ("latest~x", "is no run"),
    ],
)
def test_unknown_names_get_the_nearest(name: str, said: str, kept: Path) -> None:
    with pytest.raises(sglang_runs.RunError) as caught:
        sglang_runs.find(name, kept)
    assert said in str(caught.value)


NEWEST = "20261130T100000Z-gpu-node"


def test_a_run_is_never_found_for_itself(kept: Path) -> None:
    own = kept / "glm52" / NEWEST
    for name in ("latest", "glm52/latest"):
        assert sglang_runs.find(name, kept, skip=own).name == "20261129T100000Z-gpu-node"
    (kept / "link").symlink_to(kept / "glm52")
    assert sglang_runs.find("glm52/latest", kept, skip=kept / "link" / NEWEST).name == "20261129T100000Z-gpu-node"
    for name in (str(own), str(own / "run.json")):
        with pytest.raises(sglang_runs.RunError, match="just made, and says nothing against itself"):
            sglang_runs.find(name, kept, skip=own)
    with pytest.raises(sglang_runs.RunError, match="is no run"):
        sglang_runs.find(NEWEST, kept, skip=own)
    with pytest.raises(sglang_runs.RunError, match="has 1 other run of glm52"):
        sglang_runs.find("glm52/latest~1", kept, skip=own)


def test_runs_of_the_host_come_first(kept: Path) -> None:
    for folder in ("20261128T100000Z-b-node", "20261127T100000Z-b-node"):
        (kept / "glm52" / folder).mkdir()
        (kept / "glm52" / folder / "run.json").write_text("{}")
    assert sglang_runs.find("glm52/latest", kept).name == NEWEST
    assert sglang_runs.find("glm52/latest", kept, host="b-node").name == "20261128T100000Z-b-node"
    assert sglang_runs.find("glm52/latest~1", kept, host="b-node").name == "20261127T100000Z-b-node"
    # The end of another host's name is not the host; one without runs takes what there is.
    assert sglang_runs.find("glm52/latest", kept, host="node").name == NEWEST
    with pytest.raises(sglang_runs.RunError, match="has 2 runs of glm52 on b-node"):
        sglang_runs.find("glm52/latest~2", kept, host="b-node")
    only = kept / "kimi/20261128T100000Z-other"
    assert sglang_runs.find("kimi/latest", kept, ROOT / "baselines", None, "gpu-node") == only


def test_no_results_at_all(tmp_path: Path) -> None:
    with pytest.raises(sglang_runs.RunError, match="has 0 runs. bench.yml makes one"):
        sglang_runs.find("latest", tmp_path / "none")


# --- a comparison


@pytest.mark.parametrize("run", [old, new, h200])
def test_a_run_and_itself(run: Any) -> None:
    comparison = sglang_runs.compare([run(), run()])
    assert set(comparison) == SHAPE and comparison["comparable"] and comparison["reasons"] == []
    assert comparison["differences"] == [] and comparison["defaults"] == {"only_in_some": 0, "changed": []}
    measured = [f for rung in comparison["rungs"] for f in rung["figures"] if f["medians"][0]]
    assert measured and all(f["ratios"] == [1.0, 1.0] for f in measured)
    assert all(f["verdicts"] == ["reference", "one run each: no verdict"] for f in measured)
    assert len({entry["name"] for entry in comparison["runs"]}) == 2
    assert 2 <= len(comparison["summary"]) <= 5 and comparison["summary"][-1].endswith("nothing differs.")
    json.dumps(comparison, allow_nan=False)


def test_two_releases() -> None:
    comparison = sglang_runs.compare([named(old(), "a"), named(new(), "b")])
    ratio = new()["rungs"][0]["metrics"][OUTPUT] / old()["rungs"][0]["metrics"][OUTPUT]
    told = figure(comparison, "output throughput")
    assert told["ratios"] == [1.0, pytest.approx(ratio)] and told["better"] == "higher" and told["n"] == [1, 1]
    assert figure(comparison, "TTFT median")["better"] == "lower"
    assert comparison["differences"][0] == {
        "group": "arguments",
        "name": "max-running-requests",
        "values": ["32", "16"],
        "set": True,
    }
    assert row(comparison, "sglang")["values"] == ["0.5.9", "0.5.23"]
    # The same argument by default of each release, and those that one of them lacks.
    changed = {one["name"]: one["values"] for one in comparison["defaults"]["changed"]}
    assert changed["fp4-gemm-runner-backend"] == ["flashinfer_cutlass", "auto"]
    assert comparison["defaults"]["only_in_some"] > 100
    assert f"b writes {ratio:.2f} times the output tokens a second of a at 8 requests" in comparison["summary"][0]
    assert "1 argument that was set (max-running-requests)" in comparison["summary"][-1]
    # Where the release's cache lies, ports and seeds are of the host.
    names = {one["name"] for one in comparison["differences"]}
    assert not names & {"SGLANG_CACHE_DIR", "port", "host", "seed", "random-seed", "model-path"}


def test_the_seed_is_no_load() -> None:
    other = old()
    other["rungs"][0]["load"]["seed"] += 1
    comparison = sglang_runs.compare([old(), other])
    assert comparison["comparable"] and comparison["differences"] == []


def test_a_renamed_option_is_one_row() -> None:
    one, other = old(), new()
    one["server"]["given"]["nsa-prefill-backend"] = "trtllm"
    other["server"]["given"]["dsa_prefill_backend"] = "flashinfer_sparse_mla"
    comparison = sglang_runs.compare([one, other])
    assert row(comparison, "dsa-prefill-backend")["values"] == ["trtllm", "flashinfer_sparse_mla"]
    assert not [found for found in comparison["differences"] if "nsa" in found["name"]]
    other["server"]["given"]["dsa-prefill-backend"] = "trtllm"
    del other["server"]["given"]["dsa_prefill_backend"]
    assert not [found for found in sglang_runs.compare([one, other])["differences"] if "dsa" in found["name"]]


def test_an_argument_that_was_set_to_its_default_is_no_difference() -> None:
    other = old()
    other["server"]["given"] |= {"schedule-policy": "fcfs", "stream-interval": 1, "tp": "1"}
    assert sglang_runs.compare([old(), other])["differences"] == []


def test_what_was_set_is_read_from_the_command_line_where_nothing_else_says_it() -> None:
    runs = [old(), new()]
    for run in runs:
        run["server"]["given"] = {}
    assert row(sglang_runs.compare(runs), "max-running-requests")["set"]


def test_an_option_that_one_release_lacks_is_told_where_it_was_set() -> None:
    one = old()
    one["server"]["given"]["enable-nan-detection"] = True
    assert row(sglang_runs.compare([one, new()]), "enable-nan-detection")["values"] == ["true", "no such option"]


def test_patches_tuning_environment_and_host() -> None:
    other = old()
    other["deployment"] |= {
        "patches": [{"name": "gate", "status": "applied"}],
        "tuning": {"mode": "cache", "artefacts": ["x"]},
    }
    other["tuning"] = {**other["tuning"], "verdict": "tuned"}
    other["server"]["environment"] |= {"OMP_NUM_THREADS": "8", "FLASHINFER_WORKSPACE_BASE": "/elsewhere"}
    other["node"] = {
        "gpus": [{"name": "NVIDIA H200", "power_limit_w": 700.0}] * 2,
        "cpus": 64,
        "memory_mib": {"total": 131072},
    }
    comparison = sglang_runs.compare([old(), other])
    assert row(comparison, "gate")["values"] == ["none", "applied"]
    assert row(comparison, "verdict")["values"] == ["off", "tuned"] and row(comparison, "mode")["values"] == [
        "none",
        "cache",
    ]
    assert row(comparison, "OMP_NUM_THREADS")["values"] == ["not set", "8"]
    # What one side does not know is no difference.
    assert {found["group"] for found in comparison["differences"]} == {"patches", "tuning", "environment"}
    assert sglang_runs.gpus(other["node"]) == "2 × NVIDIA H200"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_len": 256}, "other load: input tokens a request 128 in a, 256 in b"),
        ({"output_len": 65}, "other load: output tokens a request 64 in a, 65 in b"),
        ({"range_ratio": 0.0}, "other lengths: fixed in a, drawn (range ratio 0) in b"),
        ({"dataset": "trace"}, "other prompts: random-ids in a, trace in b"),
        ({"file_sha256": "a" * 64}, "other prompts: none in a, aaaaaaaaaaaa… in b"),
        ({"request_rate": 4.0}, "other load: requests a second no limit in a, 4 in b"),
        ({"prompts": 7}, "7 requests never fill 8 places in b"),
    ],
)
def test_other_loads_say_which_number(change: dict[str, Any], said: str) -> None:
    other = old()
    other["rungs"][0]["load"].update(change)
    assert said in reasons(old(), other)


def trace(**change: Any) -> dict[str, Any]:
    run = old()
    run["rungs"][0]["load"] |= {
        "dataset": "trace", "file_sha256": "a" * 64, "input_len": None, "output_len": None, "prompts": 100, **change,
    }  # fmt: skip
    return run


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trace_slowdown": 4.0}, "other load: slowdown of the trace 1 in a, 4 in b"),
        ({"prompts": 1000}, "other load: requests in all 100 in a, 1000 in b"),
        ({"trace_slowdown": None}, "not stated for b: slowdown of the trace"),
    ],
)
def test_a_trace_is_what_is_sent_of_it_and_how_fast(change: dict[str, Any], said: str) -> None:
    assert said in reasons(trace(), trace(**change))
    assert not sglang_runs.gate(trace(), trace(**change), 0.1)["passed"]
    # What one side does not say is no difference.
    told = {one["name"] for one in sglang_runs.compare([trace(), trace(**change)])["differences"]}
    assert told == {sglang_runs.LOAD[name] for name, value in change.items() if value is not None}


def test_a_trace_without_a_slowdown_is_sent_as_recorded() -> None:
    comparison = sglang_runs.compare([trace(), trace(trace_slowdown=1.0)])
    assert comparison["comparable"] and comparison["differences"] == []
    # It comes at its own times, so that few requests are no fault; a pace that nobody stated is one.
    assert sglang_runs.compare([trace(prompts=7), trace(prompts=7)])["comparable"]
    assert "not stated" in reasons(trace(trace_slowdown=None), trace(trace_slowdown=None))
    said = sglang_runs.gate(trace(trace_slowdown=2.0), trace(trace_slowdown=2.0), 1)["msg"]
    assert "1.000 at 8 at once, at recorded times x 2" in said


def test_of_drawn_prompts_more_are_the_same_load() -> None:
    other = old()
    other["rungs"][0]["load"].update(prompts=320, trace_slowdown=4.0)
    comparison = sglang_runs.compare([old(), other])
    assert comparison["comparable"] and [one["group"] for one in comparison["differences"]] == ["measurement"]


def ladder_of(name: str, *prompts: int) -> dict[str, Any]:
    """A real load at several places of a ladder, with so many requests each; throughput is their number, to know them by."""
    run = named(old(), name)
    run["rungs"] = []
    for index, number in enumerate(prompts):
        rung = copy.deepcopy(old()["rungs"][0])
        rung["index"] = index
        rung["load"]["prompts"] = number
        rung["metrics"][OUTPUT] = float(number)
        run["rungs"].append(rung)
    return run


@pytest.mark.parametrize(
    ("one", "other", "pairs"),
    [
        ((64, 256), (64, 256), [(64, 64), (256, 256)]),
        ((64, 256), (256, 64), [(64, 64), (256, 256)]),
        ((64, 256), (256, 32), [(64, 32), (256, 256)]),
        ((64, 256), (100, 32), [(64, 100), (256, 32)]),
        ((64, 64), (64, 64), [(64, 64), (64, 64)]),
        ((64,), (32, 64), [(64, 64), (None, 32)]),
        ((64, 32), (32,), [(64, None), (32, 32)]),
    ],
)
def test_one_load_at_two_places_is_no_repeat(
    one: tuple[int, ...], other: tuple[int, ...], pairs: list[tuple[float | None, ...]]
) -> None:
    comparison = sglang_runs.compare([ladder_of("a", *one), ladder_of("b", *other)])
    told = [figure(comparison, "output throughput", place) for place in range(len(comparison["rungs"]))]
    assert [tuple(entry["medians"]) for entry in told] == pairs
    assert max(n for entry in told for n in entry["n"]) == 1


def test_a_third_run_meets_the_loads_of_the_second() -> None:
    comparison = sglang_runs.compare([ladder_of("a", 64), ladder_of("b", 64, 32), ladder_of("c", 32, 64)])
    told = [figure(comparison, "output throughput", place)["medians"] for place in (0, 1)]
    assert len(comparison["rungs"]) == 2 and told == [[64, 64, 64], [None, 32, 32]]


def test_the_gate_keeps_loads_of_the_same_words_apart() -> None:
    reference, run = ladder_of("a", 64, 256, 256), ladder_of("b", 64, 256, 256)
    run["rungs"][0]["metrics"][OUTPUT] = 6.4
    told = sglang_runs.gate(reference, run, 0.9)
    assert not told["passed"] and "0.100 at 8 at once, 128 in, 64 out." in told["msg"]
    assert list(told["ratios"].values()) == [0.1, 1, 1]
    assert list(told["ratios"])[1:] == [
        f"8 at once, 128 in, 64 out, 256 requests in all{more}" for more in ("", " (2)")
    ]


def test_other_numbers_of_requests_have_no_load_in_common() -> None:
    other = old()
    other["rungs"][0]["load"]["concurrency"] = 16
    comparison = sglang_runs.compare([named(old(), "a"), named(other, "b")])
    assert [rung["reasons"] for rung in comparison["rungs"]] == [["b has no such load"], ["only b has this load"]]
    assert not comparison["comparable"] and comparison["summary"][0].startswith("Nothing of a and b can be compared")


def test_the_nearest_load_is_laid_beside_and_none_twice() -> None:
    run = h200()
    other = named(run, "b")
    other["rungs"] = [copy.deepcopy(run["rungs"][2]), copy.deepcopy(run["rungs"][2])]
    other["rungs"][1]["load"].update(input_len=512)
    comparison = sglang_runs.compare([named(run, "a"), other])
    assert [(r["load"]["concurrency"], r["load"]["input_len"], r["comparable"]) for r in comparison["rungs"]] == [
        (1, 256, False),
        (8, 256, False),
        (64, 256, True),
        (64, 512, False),
    ]


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ((0.0, 0.6), "warm against cold cache: 0 % of a's input tokens came from the prefix cache, 60 % of b's"),
        ((None, 0.6), "an unknown share of a's input tokens"),
        ((0.0, 0.009), ""),
        ((0.6, 0.605), ""),
        ((None, None), ""),
    ],
)
def test_warm_and_cold_caches(ratios: tuple[float | None, float | None], said: str) -> None:
    runs = [old(), old()]
    for run, ratio in zip(runs, ratios, strict=True):
        run["rungs"][0]["metrics"]["cached_token_ratio"] = ratio
    if said:
        assert said in reasons(*runs)
    else:
        assert sglang_runs.compare(runs)["comparable"]


def test_rungs_that_failed_or_are_invalid() -> None:
    other = old()
    other["rungs"][0].update(valid=False, problems=["3 of 32 requests failed"])
    assert "this load is not valid in b: 3 of 32 requests failed" in reasons(old(), other)
    other["rungs"][0].update(status="failed", metrics=None, problems=["the server died"])
    assert "this load failed in b: the server died" in reasons(old(), other)
    other["rungs"][0].update(status="not_run", problems=[])
    assert "this load was not run in b" in reasons(old(), other)
    # The rungs that are good stay.
    run = repeated(old(), "b", 1, 1, 1)
    run["rungs"][1].update(valid=False, problems=["cache was warm"])
    assert figure(sglang_runs.compare([old(), run]), "output throughput")["n"] == [1, 2]


def test_wrong_answers_and_broken_ladders() -> None:
    other = old()
    other["answers"] = {
        "before": {"passed": True, "summary": ""},
        "after": {"passed": False, "summary": "2 of 5 questions"},
    }
    assert "the answers of b were wrong after the loads: 2 of 5 questions" in reasons(old(), other)
    other = named(old(), "b")
    other["finished"] = None
    comparison = sglang_runs.compare([old(), other])
    assert comparison["comparable"] and comparison["reasons"] == ["b is not at its end: loads are missing"]


def test_other_models_and_machines_are_said_and_compared() -> None:
    other = named(old(), "b")
    other["target"]["model_path"] = "/models/other"
    comparison = sglang_runs.compare([named(old(), "a"), other])
    assert comparison["comparable"]
    assert comparison["reasons"][0].startswith("other models: tiny-llama (a), other (b).")
    assert any(sentence.startswith("Other models") for sentence in comparison["summary"])
    # Another folder of the same model is the same model.
    other["target"]["model_path"] = "/elsewhere/tiny-llama"
    assert sglang_runs.compare([old(), other])["differences"] == []


# --- verdicts


@pytest.mark.parametrize(
    ("reference", "other", "throughput", "latency"),
    [
        ((1, 1.02, 0.98), (1.1, 1.2, 1.15), "faster", "faster"),
        ((1, 1.02, 0.98), (0.9, 0.8, 0.85), "slower", "slower"),
        ((1, 1.02, 0.98), (1.01, 1.2, 1.15), "within the noise", "within the noise"),
        ((1, 1), (1.1, 1.2), *["faster (2 runs only, their spreads do not overlap)"] * 2),
        ((1, 1.2), (1.1, 1.3), "within the noise", "within the noise"),
        ((1,), (2,), "one run each: no verdict", "one run each: no verdict"),
        ((1, 1, 1), (2,), "one run on one side: no verdict", "one run on one side: no verdict"),
    ],
)
def test_verdicts_need_repeats_and_apart_spreads(
    reference: tuple[float, ...], other: tuple[float, ...], throughput: str, latency: str
) -> None:
    comparison = sglang_runs.compare([repeated(old(), "a", *reference), repeated(old(), "b", *other)])
    told = figure(comparison, "output throughput")
    assert told["verdicts"] == ["reference", throughput] and told["n"] == [len(reference), len(other)]
    assert figure(comparison, "TPOT median")["verdicts"][1] == latency
    base = old()["rungs"][0]["metrics"][OUTPUT]
    assert told["spreads"][1] == [pytest.approx(base * min(other)), pytest.approx(base * max(other))]
    assert throughput in comparison["summary"][0]


def test_a_verdict_of_two_lists() -> None:
    low, high = [1.0, 1.1, 0.9], [2.0, 1.9, 2.1]
    said = [
        sglang_runs.verdict(*sides, better) for sides in ((low, high), (high, low)) for better in ("higher", "lower")
    ]
    assert said == ["faster", "slower", "slower", "faster"] and low == [1.0, 1.1, 0.9]
    assert sglang_runs.verdict(low, high, "higher", "W") == "higher"
    assert sglang_runs.verdict([], high, "higher") == "not measured"


def test_power_is_more_or_less_not_fast() -> None:
    run = repeated(h200(), "a", 1, 1, 1)
    more = copy.deepcopy(run)
    for rung in more["rungs"]:
        rung["telemetry"]["power_w"]["mean"] *= 1.5
    assert figure(sglang_runs.compare([run, more]), "power, mean")["verdicts"][1] == "higher"
    assert figure(sglang_runs.compare([more, run]), "power, mean")["verdicts"][1] == "lower"


@given(
    st.lists(st.floats(1, 1e6), min_size=1, max_size=5),
    st.lists(st.floats(1, 1e6), min_size=1, max_size=5),
    st.sampled_from(["higher", "lower"]),
)
def test_a_verdict_turns_round_with_its_sides(one: list[float], other: list[float], better: str) -> None:
    turned = {"faster": "slower", "slower": "faster"}
    said, back = (sglang_runs.verdict(*sides, better, "ms") for sides in ((one, other), (other, one)))
    word = said.split()[0]
    assert back == said.replace(word, turned.get(word, word), 1)
    assert (word in turned) == (min(len(one), len(other)) > 1 and (max(one) < min(other) or max(other) < min(one)))


# --- published figures


def test_total_and_output_are_kept_apart() -> None:
    published = sglang_runs.read(ROOT / "baselines/k2-thinking-nvfp4.yml")
    total = named(published, "total")
    output = named(published, "output")
    for rung in total["rungs"]:
        del rung["metrics"][OUTPUT]
    both = sglang_runs.compare([published, total])
    # The kind that both have is compared, also where the other is missing.
    for rung in both["rungs"]:
        rung["reasons"] = [reason for reason in rung["reasons"] if "dataset" not in reason]
        assert rung["reasons"] == []
    for rung in output["rungs"]:
        rung["metrics"]["total_throughput_tokens_per_s"] = None
    said = sglang_runs.compare([output, total])
    assert not said["comparable"]
    assert any(
        "no throughput of one kind: output throughput in output, total throughput in total" in r
        for r in said["reasons"]
    )


def test_a_kind_that_is_not_stated_never_gets_a_verdict() -> None:
    runs = [sglang_runs.read(ROOT / f"baselines/origin-glm5-{figure}.yml") for figure in (880, 3740)]
    comparison = sglang_runs.compare(runs)
    told = figure(comparison, "throughput, kind not stated")
    assert told["medians"] == [880, 3740] and told["ratios"] == [None, None]
    assert told["verdicts"] == ["reference", "kind not stated: no verdict"]
    assert not comparison["comparable"] and row(comparison, "max-running-requests")["values"] == ["64", "2048"]
    assert comparison["reasons"][0].startswith(
        "not stated for origin-glm5-880 and origin-glm5-3740: requests at once, input"
    )


def test_what_was_measured_otherwise() -> None:
    client, decode = (sglang_runs.read(ROOT / f"baselines/glm51-nvfp4-mtp{end}.yml") for end in ("", "-decode"))
    comparison = sglang_runs.compare([client, decode])
    assert not comparison["comparable"] and comparison["reasons"][0].startswith(
        "measured otherwise: glm51-nvfp4-mtp from the first"
    )


def test_two_rows_of_one_table_can_be_compared() -> None:
    runs = [sglang_runs.read(ROOT / f"baselines/glm5-nvfp4{end}.yml") for end in ("", "-mtp")]
    comparison = sglang_runs.compare(runs)
    assert comparison["comparable"] and figure(comparison, "output throughput")["ratios"][1] == pytest.approx(
        93.6 / 50.4
    )


def test_a_baseline_beside_a_run() -> None:
    run = named(h200(), "mine")
    for rung in run["rungs"]:
        rung["load"].update(concurrency=2048, prompts=8192, input_len=256, output_len=100)
    run["rungs"] = run["rungs"][:1]
    comparison = sglang_runs.compare([sglang_runs.read(ROOT / "baselines/k2-thinking-nvfp4.yml"), run])
    (rung,) = [one for one in comparison["rungs"] if one["load"]["concurrency"] == 2048]
    said = " | ".join(rung["reasons"])
    assert "other lengths: drawn (range ratio 0) in k2-thinking-nvfp4, fixed in mine" in said
    assert "warm against cold cache: 51 % of k2-thinking-nvfp4's" in said
    assert "not stated for k2-thinking-nvfp4: dataset" in said


# --- the gate


def test_the_gate() -> None:
    reference = repeated(old(), "a", 1, 1.1, 0.9)
    assert sglang_runs.gate(reference, repeated(old(), "b", 0.97), 0.95)["passed"]
    told = sglang_runs.gate(reference, repeated(old(), "b", 0.94, 0.93, 0.95), 0.95)
    assert not told["passed"] and told["ratios"] == {"8 at once, 128 in, 64 out": pytest.approx(0.94)}
    assert (
        told["msg"]
        == "b writes less than 0.95 times the output tokens a second of a: 0.940 at 8 at once, 128 in, 64 out."
    )


def test_the_gate_needs_every_common_rung() -> None:
    run = h200()
    other = named(run, "b")
    other["rungs"] = other["rungs"][1:]
    assert list(sglang_runs.gate(run, other, 1)["ratios"]) == [
        "8 at once, 256 in, 128 out",
        "64 at once, 256 in, 128 out",
    ]
    other["rungs"][0].update(valid=False, problems=["the server died"])
    told = sglang_runs.gate(run, other, 0.5)
    assert (
        not told["passed"]
        and "at 8 at once, 256 in, 128 out: this load is not valid in b: the server died" in told["msg"]
    )
    told = sglang_runs.gate(run, old(), 0.5)
    assert not told["passed"] and told["ratios"] == {} and "no load in common (other load: input tokens" in told["msg"]


def test_the_gate_takes_no_figure_of_another_kind() -> None:
    published = sglang_runs.read(ROOT / "baselines/origin-glm5-880.yml")
    told = sglang_runs.gate(published, old(), 0.1)
    assert not told["passed"] and "no load in common" in told["msg"]


def test_one_run_is_no_comparison() -> None:
    with pytest.raises(sglang_runs.RunError, match="two runs or more"):
        sglang_runs.compare([old()])


def test_what_is_left_out_is_an_option_somewhere() -> None:
    """The list of arguments that are not of note holds no name that no release and no server knows."""
    known = {field for stack in ("0.5.9", "0.5.15.post1", "0.5.23") for field in sglang_runs.options_of(stack)}
    of_servers = {"internal_states", "status", "version", "startup_time", "launch_command", "frontend"}
    of_servers |= {"max_req_input_len", "max_total_num_tokens"}
    assert sglang_runs.NOT_OF_NOTE - known - of_servers == set()
    names = yaml.safe_load((ROOT / "stacks/renames.yml").read_text())
    assert sglang_runs.newest_names()["nsa_prefill_backend"] == names[0]["names"][0].replace("-", "_")
