"""The client's command line, its JSON lines of three releases (data/sglang_bench/README.md), and what the module makes of them."""

from __future__ import annotations

import http.server
import json
import os
import stat
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sglang_bench as bench
import yaml
from ansible.module_utils.testing import patch_module_args
from helpers import serving

DATA = Path(__file__).parent / "data" / "sglang_bench"
LOAD: dict[str, Any] = {
    "concurrency": 8,
    "prompts": 32,
    "input_len": 128,
    "output_len": 64,
    "range_ratio": 1.0,
    "dataset": "random-ids",
}


def recorded(name: str) -> dict[str, Any]:
    return bench.parse_result((DATA / name).read_text())


@pytest.mark.parametrize("text", [bench.DOCUMENTATION, bench.EXAMPLES, bench.RETURN])
def test_documentation_is_yaml_and_matches_the_arguments(text: str) -> None:
    loaded = yaml.safe_load(text)
    if text is bench.DOCUMENTATION:
        assert set(loaded["options"]) == set(bench.SPEC)
        for name, option in loaded["options"].items():
            assert option["type"] == bench.SPEC[name]["type"]
            assert option.get("default") == bench.SPEC[name].get("default")
            assert option.get("required", False) == bench.SPEC[name].get("required", False)


# --- the result


def strict(value: Any) -> str:
    """JSON that any parser reads; raises for NaN and Infinity."""
    return json.dumps(value, allow_nan=False)


@pytest.mark.parametrize(
    ("name", "keys", "prompts", "output"),
    [("0.5.9.jsonl", 43, 32, 2048), ("0.5.23.jsonl", 49, 32, 2048), ("0.5.15.post1.jsonl", 49, 256, 32768)],
)
def test_recorded_lines_of_three_releases(name: str, keys: int, prompts: int, output: int) -> None:
    result = recorded(name)
    assert len(result) == keys
    figures = bench.metrics(result, prompts)
    assert (figures["completed"], figures["failed"], figures["output_tokens"]) == (prompts, 0, output)
    total = figures["input_throughput_tokens_per_s"] + figures["output_throughput_tokens_per_s"]
    assert figures["total_throughput_tokens_per_s"] == pytest.approx(total)
    assert figures["output_throughput_tokens_per_s"] == pytest.approx(output / figures["duration_s"])
    for latency in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert set(figures[latency]) == {"mean", "median", "p90", "p95", "p99"}
        assert figures[latency]["p99"] is not None
    raw = bench.raw_figures(result)
    assert raw["request_rate"] == "inf" and "server_info" not in raw
    strict([figures, raw])


def test_what_a_release_does_not_report_is_null_without_details() -> None:
    old, new = (bench.metrics(recorded(name), 32) for name in ("0.5.9.jsonl", "0.5.23.jsonl"))
    assert [old["ttft_ms"][name] for name in ("p90", "p95")] == [None, None]
    assert old["itl_ms"]["p95"] is not None and old["e2e_ms"]["p95"] is None
    assert None not in new["ttft_ms"].values() and None not in new["e2e_ms"].values()


def details(**changes: Any) -> dict[str, Any]:
    """A result with per-request figures: four requests of 3 tokens, one of them failed."""
    result = {
        "completed": 3,
        "total_input_tokens": 6,
        "total_output_tokens": 9,
        "duration": 1.0,
        "ttfts": [0.1, 0.2, 0.3, 0.0],
        "itls": [[0.01, 0.03], [0.02, 0.02], [0.03, 0.05], []],
        "output_lens": [3, 3, 3, 0],
        "input_lens": [2, 2, 2, 2],
        "errors": ["", "", "", "Traceback …\naiohttp.ClientError: gone"],
    }
    return {**result, **changes}


def test_missing_percentiles_are_computed_from_the_requests() -> None:
    found = bench.latencies(details(p99_ttft_ms=7.0))
    assert found["ttft_ms"]["p90"] == pytest.approx(280) and found["ttft_ms"]["p99"] == 7.0
    assert found["tpot_ms"]["p90"] is None and found["e2e_ms"]["p90"] is None  # not written by request
    assert found["itl_ms"]["p95"] == pytest.approx(45)
    assert found["ttft_ms"]["mean"] is None  # a mean that the client leaves out is not made up


def test_percentiles_are_those_of_the_standard_library() -> None:
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.0]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for percent in (50, 90, 95, 99):
        assert bench.percentile(values, percent) == pytest.approx(cuts[percent - 1])
    assert bench.percentile([], 90) is None and bench.percentile([4.0], 99) == 4.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("\n \n", "empty"),
        ('{"completed": 3, "dura', "not whole JSON"),
        ("[1]", "not a result"),
        ('{"error": 1}', "not a result"),
    ],
)
def test_what_is_no_result(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bench.parse_result(text)


def test_the_last_line_of_several_counts() -> None:
    assert bench.parse_result('{"completed": 1}\n{"completed": 2}\n\n')["completed"] == 2


def test_nothing_completed_leaves_no_latency() -> None:
    text = (
        '{"completed": 0, "duration": 1.0, "total_output_tokens": 0, "mean_ttft_ms": 0.0, '
        '"mean_e2e_latency_ms": NaN, "request_rate": Infinity}'
    )
    result = bench.parse_result(text)
    figures = bench.metrics(result, 32)
    assert figures["failed"] == 32 and figures["ttft_ms"]["mean"] is None and figures["e2e_ms"]["mean"] is None
    assert bench.problems(result, figures, LOAD) == ["no request was answered"]
    assert bench.raw_figures(result)["mean_e2e_latency_ms"] is None
    strict([figures, bench.raw_figures(result)])


def judged(result: dict[str, Any], **load: Any) -> list[str]:
    asked = {**LOAD, **load}
    return bench.problems(result, bench.metrics(result, asked["prompts"]), asked)


def test_a_good_run_has_no_problems() -> None:
    assert judged(recorded("0.5.23.jsonl")) == [] and judged(recorded("0.5.9.jsonl")) == []


def test_failed_requests_show_the_first_error() -> None:
    found = judged(details(), prompts=4, input_len=2, output_len=3)
    assert found == ["1 of 4 requests failed; the first error: aiohttp.ClientError: gone"]


def test_output_that_ended_early_is_a_problem() -> None:
    found = judged({**recorded("0.5.23.jsonl"), "total_output_tokens": 1500})
    assert len(found) == 1 and found[0].startswith("1500 output tokens instead of 2048 (32 x 64)")
    assert judged({**recorded("0.5.23.jsonl"), "total_output_tokens": 1500}, range_ratio=0.5) == []


def test_input_that_is_not_what_was_asked_is_a_problem() -> None:
    assert judged(recorded("0.5.23.jsonl"), input_len=256) == ["4096 input tokens instead of 8192 (32 x 256)"]


def test_requests_refused_inside_a_stream_are_not_taken_for_answers() -> None:
    found = judged(recorded("refused-0.5.23.jsonl"), prompts=4, input_len=9000, output_len=8)
    assert len(found) == 1 and found[0].startswith("4 of 4 requests brought no text")


def test_notes_on_prompt_lengths_and_unfilled_places() -> None:
    load = {**LOAD, "prompts": 4, "concurrency": 8}
    notes = bench.remarks(details(completed=4, errors=[""] * 4, input_lens=[2, 2, 3, 2], total_input_tokens=8), load)
    assert len(notes) == 2
    assert "never fill 8 places" in notes[0] and "the server counted 9 input tokens" in notes[1]
    assert bench.remarks(recorded("0.5.23.jsonl"), LOAD) == []


def test_keys_of_the_server_are_blanked() -> None:
    result = {"server_info": {"api_key": "secret", "admin_api_key": None, "version": "1"}}
    assert bench.without_keys(result) and "secret" not in json.dumps(result)
    assert not bench.without_keys({"server_info": {"api_key": None}}) and not bench.without_keys({"server_info": None})


# --- the client


def package(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = folder / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "sglang")


MAIN = 'parser.add_argument("--served-model-name")\nif __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    ("files", "module"),
    [
        ({"bench_serving.py": MAIN}, "sglang.bench_serving"),
        ({"bench_serving.py": MAIN, "benchmark/serving.py": MAIN}, "sglang.benchmark.serving"),
        ({"bench_serving.py": MAIN, "benchmark/serving.py": "# moved later"}, "sglang.bench_serving"),
        ({"__init__.py": ""}, None),
    ],
)
def test_the_client_is_found_by_what_is_installed(tmp_path: Path, files: dict[str, str], module: str | None) -> None:
    client = bench.find_client([package(tmp_path, files)], "1")
    assert (client.module if client else None) == module
    assert client is None or client.options == {"--served-model-name"}


def parameters(**changes: Any) -> dict[str, Any]:
    defaults = {name: spec.get("default") for name, spec in bench.SPEC.items()}
    given = {"python": "/p", "url": "http://h:1/", "model": "/m", **LOAD}
    return {**defaults, **given, **changes}


def test_the_command_line_fixes_lengths_seed_and_cold_cache() -> None:
    command = bench.command_line(bench.Client("m", set(), None), parameters(), "/r.jsonl")
    pairs = dict(zip(command, command[1:]))
    assert command[:3] == ["/p", "-m", "m"]
    assert pairs["--random-range-ratio"] == "1.0" and pairs["--seed"] == "1" and pairs["--dataset-name"] == "random-ids"
    assert pairs["--base-url"] == "http://h:1" and pairs["--tokenizer"] == "/m" and pairs["--output-file"] == "/r.jsonl"
    assert "--flush-cache" in command and "--request-rate" not in command


def test_options_that_depend_on_what_was_asked_and_is_installed() -> None:
    asked = parameters(served_model="s", request_rate=2.5, flush_cache=False, extra_args=["--temperature", "1"])
    command = bench.command_line(bench.Client("m", {"--served-model-name"}, None), asked, "/r")
    pairs = dict(zip(command, command[1:]))
    assert pairs["--served-model-name"] == "s" and pairs["--request-rate"] == "2.5" and "--flush-cache" not in command
    assert command[-2:] == ["--temperature", "1"]
    assert "--served-model-name" not in bench.command_line(bench.Client("m", set(), None), asked, "/r")


def test_the_clients_environment() -> None:
    found = bench.client_environment(parameters(api_key="k", environment={"A": 1}), {"NO_PROXY": "x", "PATH": "/bin"})
    assert found["NO_PROXY"] == "x,h" and found["no_proxy"] == "h" and found["OPENAI_API_KEY"] == "k"
    assert found["A"] == "1" and found["PATH"] == "/bin" and found["PYTHONDONTWRITEBYTECODE"] == "1"
    assert (
        bench.client_environment(parameters(environment={"SGLANG_CACHE_DIR": "/c"}), {}).get("SGLANG_CACHE_DIR") is None
    )


# --- the module, with a package that stands in for sglang

STANDIN = """\
import json, os, sys, time
arguments = dict(zip(sys.argv, sys.argv[1:]))
mode = os.environ.get("MODE", "good")
if mode == "hang":
    print("sending requests", flush=True)
    if os.fork() == 0:
        time.sleep(60)
    time.sleep(60)
if mode == "fail":
    raise ValueError("Warmup failed - Please make sure benchmark arguments are correct")
if mode != "silent":
    n, i, o = (int(arguments[name]) for name in ("--num-prompts", "--random-input-len", "--random-output-len"))
    with open(arguments["--output-file"], "a") as file:
        result = {"completed": n, "duration": 2.0, "total_input_tokens": n * i, "total_output_tokens": n * o,
                  "request_rate": float("inf"), "server_info": {"api_key": "secret"}, "errors": [""] * n}
        file.write(json.dumps(result) + "\\n")
if __name__ == "__main__":
    pass
"""


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    state = SimpleNamespace(health=200, flush=200, asked=[], url="")

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            state.asked.append((self.command, self.path))
            self.send_response(state.health if self.path == "/health" else state.flush)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = answer

        def log_message(self, *args: Any) -> None:
            pass

    with serving(Handler) as state.url:
        yield state


@pytest.fixture
def module(
    tmp_path: Path, server: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    package(tmp_path, {"__init__.py": "", "bench_serving.py": STANDIN})
    # Locating takes the package from PYTHONPATH too; the stand-in needs no virtual environment of its own.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(mode: str = "good", **args: Any) -> dict[str, Any]:
        given = {
            "python": sys.executable,
            "url": server.url,
            "model": "/m",
            **LOAD,
            "environment": {"MODE": mode},
            **args,
        }
        with patch_module_args(given), pytest.raises(SystemExit):
            bench.main()
        return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))

    return run


def test_a_run(module: Callable[..., dict[str, Any]], server: SimpleNamespace, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    result = module(output_file=str(kept))
    assert result["changed"] is False and result["valid"] is True and result["problems"] == []
    assert result["metrics"]["completed"] == 32 and result["metrics"]["output_tokens"] == 2048
    assert result["load"]["concurrency"] == 8 and result["load"]["request_rate"] is None
    assert result["client"] == {"module": "sglang.bench_serving", "version": None}
    assert server.asked == [("GET", "/health"), ("POST", "/flush_cache")]
    assert "secret" not in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and list(tmp_path.glob(".sglang*")) == []
    assert bench.parse_result(kept.read_text())["request_rate"] == float("inf")
    folder = Path(result["command"][result["command"].index("--output-file") + 1]).parent
    assert not folder.exists()


def test_an_output_file_in_a_missing_folder(module: Callable[..., dict[str, Any]]) -> None:
    assert "Expected an existing folder /nonexistent" in module(output_file="/nonexistent/x.jsonl")["msg"]


def test_a_cache_that_was_not_flushed_makes_it_invalid(
    module: Callable[..., dict[str, Any]], server: SimpleNamespace
) -> None:
    server.flush = 400
    result = module()
    assert result["valid"] is False and "the prefix cache was not flushed" in result["problems"][0]
    assert module(flush_cache=False)["valid"] is True


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("fail", "ended with status 1: ValueError: Warmup failed - Please make sure benchmark arguments are correct"),
        ("silent", "ended with status 0 but left no result"),
    ],
)
def test_a_client_that_fails(module: Callable[..., dict[str, Any]], mode: str, said: str) -> None:
    result = module(mode)
    assert result["failed"] and said in result["msg"] and result["command"][1:3] == ["-m", "sglang.bench_serving"]


def running(marker: str) -> list[int]:
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if marker in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
        except OSError:
            continue
    return found


def test_a_client_that_hangs_is_killed_with_its_children(module: Callable[..., dict[str, Any]]) -> None:
    marker = f"--tag=hang-{os.getpid()}"
    result = module("hang", timeout=1, extra_args=[marker])
    assert "did not finish within 1 s and was killed" in result["msg"] and result["last_lines"] == ["sending requests"]
    deadline = time.monotonic() + 5
    while running(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running(marker) == []


def test_a_server_that_is_not_there_is_said_before_running(
    module: Callable[..., dict[str, Any]], server: SimpleNamespace
) -> None:
    assert "http://127.0.0.1:9/health does not answer with 200" in module(url="http://127.0.0.1:9")["msg"]
    server.health = 503
    assert "(HTTP 503" in module()["msg"]


def test_a_missing_python_and_a_missing_client(
    module: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "missing or not executable" in module(python="/nonexistent/python")["msg"]
    (tmp_path / "sglang" / "bench_serving.py").unlink()
    assert "no benchmark client" in module()["msg"]
    monkeypatch.delenv("PYTHONPATH")
    assert "has no sglang" in module()["msg"]


@pytest.mark.parametrize(("name", "value"), [("concurrency", 0), ("output_len", -1), ("range_ratio", 1.5)])
def test_loads_that_make_no_sense(module: Callable[..., dict[str, Any]], name: str, value: float) -> None:
    assert f"{name} is {value}" in module(**{name: value})["msg"]


def test_check_mode_measures_nothing(module: Callable[..., dict[str, Any]], server: SimpleNamespace) -> None:
    result = module(_ansible_check_mode=True)
    assert result["skipped"] is True and result["changed"] is False and server.asked == []
