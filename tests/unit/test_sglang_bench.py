"""The client's command line, its JSON lines of three releases (data/sglang_bench/README.md), and what the module makes of them."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import http.server
import io
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
from ansible.module_utils import sglang_bencher, sglang_job, sglang_rules
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
    "request_rate": None,
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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompts": 24}, ""),
        ({"prompts": 23}, "for 8 requests in flight only 23 are sent: no steady window"),
        ({"prompts": 8}, "for 8 requests in flight only 8 are sent: no steady window"),
        ({"prompts": 7}, "7 requests never fill 8 places"),
        ({"prompts": 23, "request_rate": 2.0}, ""),
        ({"prompts": 23, "dataset": "trace"}, ""),
    ],
)
def test_a_load_that_is_too_short_to_be_steady(changes: dict[str, Any], said: str) -> None:
    notes = bench.remarks({}, {**LOAD, **changes})
    assert len(notes) == bool(said) and (not said or notes[0].startswith(said))
    assert "no steady" not in said or notes[0].endswith(
        "at least three times as many, prompts (in sglang_bench_loads) 24."
    )


def test_keys_of_the_server_are_blanked() -> None:
    inner: dict[str, Any] = {"api_key": "secret", "ssl_keyfile_password": "secret", "max_total_tokens": 5}
    result: dict[str, Any] = {
        "server_info": {"api_key": "secret", "admin_api_key": None, "internal_states": [inner]},
        "completed": 3,
    }
    told = unpacked(bench.raw_file(result)[0])
    assert "secret" not in told and result["server_info"]["internal_states"] == [inner]
    kept = json.loads(told)
    assert kept["server_info"]["api_key"] == "***" and kept["server_info"]["admin_api_key"] is None
    assert kept["server_info"]["internal_states"][0]["max_total_tokens"] == 5 and kept["completed"] == 3


def unpacked(text: str) -> str:
    return gzip.decompress(base64.b64decode(text)).decode()


def test_a_line_that_is_too_long_to_return_is_without_its_lists() -> None:
    texts = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(200)]
    result = {"completed": 200, "errors": texts, "duration": 1.0}
    raw, note = bench.raw_file(result, largest=2000)
    assert json.loads(unpacked(raw)) == {"completed": 200, "duration": 1.0} and "without its lists by request" in note
    raw, note = bench.raw_file(result)
    assert json.loads(unpacked(raw)) == result and note == ""


def test_texts_of_prompts_and_answers_are_not_kept() -> None:
    result = recorded("refused-0.5.23.jsonl")
    assert len(result["generated_texts"]) == 4
    kept = json.loads(unpacked(bench.raw_file(result)[0]))
    assert set(result) - set(kept) == {"generated_texts"} and kept["errors"] == result["errors"]
    # Names that no release has yet, of whatever shape.
    more = {"prompts": ["a"], "messages": [{"role": "user", "content": "b"}], "turns": [["c"], []], "odd": ["d", None]}
    same = {"cached_tokens_details": [{"device": 3}, None], "itls": [[0.1], []], "tag": "mine", "errors": ["gone"]}
    assert bench.without_texts({**more, **same}) == same


def test_the_end_of_the_output_is_kept_without_the_key() -> None:
    text = "".join(f"line {number} of the key k-1\n" for number in range(9000))
    kept = unpacked(bench.output_file(text, "k-1")["output"])
    assert 60000 < len(kept) <= 65536 and kept.endswith("line 8999 of the key ***\n") and kept.startswith("line ")
    assert unpacked(bench.output_file("a\nb\n", None)["output"]) == "a\nb\n"
    assert len(unpacked(bench.output_file("x" * 70000, None)["output"])) == 65536
    assert bench.output_file(" \n", None) == {} == bench.output_file("", "k")


CACHED = [
    ({"prompt_tokens": 4096.0, "cached_tokens": 0.0}, 0.0, {}, False),
    ({"prompt_tokens": 4096.0, "cached_tokens": 2048.0}, 0.5, {}, True),
    ({"prompt_tokens": 4096.0, "cached_tokens": 40.0}, 0.0098, {}, False),
    # The token that begins every text is not a warm cache.
    ({"prompt_tokens": 512.0, "cached_tokens": 31.0}, 0.0605, {"input_len": 16}, False),
    ({"prompt_tokens": 4096.0, "cached_tokens": 2048.0}, 0.5, {"dataset": "sharegpt"}, False),
    (None, None, {}, False),
]


def test_prompts_that_begin_alike_by_chance_are_no_warm_cache() -> None:
    # As measured on one H200, 2026-11-30: 512 prompts of 512 tokens over 4,096 ids, 5.9 % of them cached.
    assert 0.059 < bench.explained(512, 512 * 512, 4096) < 0.11
    # A large vocabulary explains nothing of a few prompts, and one per cent of thousands.
    assert bench.explained(64, 64 * 1024, 151552) < 0.01 < bench.explained(4096, 4096 * 256, 151552) < 0.04
    assert bench.explained(64, 64 * 1024, 0) == pytest.approx(2 / 1024) and bench.explained(0, 0, 4096) == 0
    result = {**recorded("0.5.23.jsonl"), "total_input_tokens": 2048}
    figures = bench.metrics(result, 32, {"prompt_tokens": 2048.0, "cached_tokens": 64.0}, 4096)
    assert figures["cached_token_ratio"] == 0.0312 and figures["warm_token_ratio"] == 0
    assert not bench.problems(result, figures, {**LOAD, "input_len": 64})
    assert any("by chance" in note for note in bench.remarks(result, LOAD, None, figures))


def test_the_vocabulary_of_a_model(tmp_path: Path) -> None:
    assert bench.vocabulary(str(tmp_path)) == 0 == bench.vocabulary("nobody/model")
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 163840}}')
    assert bench.vocabulary(str(tmp_path)) == 163840
    (tmp_path / "config.json").write_text('{"vocab_size": 4096, "text_config": {"vocab_size": 1}}')
    assert bench.vocabulary(str(tmp_path)) == 4096


@pytest.mark.parametrize(
    ("cached", "ratio", "changes", "found"),
    CACHED,
)
def test_a_warm_cache_is_a_problem_of_random_prompts(
    cached: dict[str, float] | None, ratio: float | None, changes: dict[str, Any], found: bool
) -> None:
    load = {**LOAD, **changes}
    result = {**recorded("0.5.23.jsonl"), "total_input_tokens": 32 * load["input_len"]}
    figures = bench.metrics(result, 32, cached)
    assert figures["cached_token_ratio"] == ratio
    problems = bench.problems(result, figures, load)
    assert bool(problems) == found and (
        not found or "50.0 % of the input tokens came from the prefix cache" in problems[0]
    )


def test_rules_judge_what_was_seen_beside_a_load() -> None:
    """From samples to a finding: the summary has the names that rules/load.yml asks for."""

    def told(
        watts: float, running: float = 8.0, queued: float = 0.0, mask: int = 0, gpus: int = 2
    ) -> list[dict[str, Any]]:
        one = {"name": "Card", "power_w": watts, "limit_w": 600.0, "utilization_percent": 99.0, "reasons": mask}
        state = {"running": running, "queued": queued, "token_usage": 0.5, "retracted": 0.0}
        samples = [
            sglang_bencher.Sample(t, {index: {"index": index, **one} for index in range(gpus)}, {}, state)
            for t in range(9)
        ]
        telemetry = sglang_bencher.summary(samples, 8.0, 1.0)
        rung = {"load": LOAD, "metrics": {}, "telemetry": telemetry}
        rules = sglang_rules.load(str(Path(bench.__file__).parents[1] / "rules"))
        return sglang_rules.findings(rules, rung, {"max_running_requests": 8})

    def ids(*args: Any, **more: Any) -> list[str]:
        return [found["id"] for found in told(*args, **more)]

    assert ids(500.0) == [] and ids(330.0) == ["load-starved"] and ids(130.0) == ["load-hung"]
    assert ids(130.0, gpus=1) == [] == ids(130.0, gpus=0)
    assert ids(500.0, queued=9.0) == ["load-queue-bound"] and ids(500.0, queued=9.0, running=4.0) == []
    assert ids(500.0, mask=0x40) == ["load-throttled"] and ids(590.0, mask=0x4) == ["load-power-capped"]
    assert set(told(330.0)[0]) == {"id", "severity", "cause", "remedy"}
    rules = sglang_rules.load(str(Path(bench.__file__).parents[1] / "rules"))
    assert sglang_rules.findings(rules, {"load": LOAD, "metrics": {}, "telemetry": None}, {}) == []


# --- datasets from files


def lines(*entries: Any) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in entries)


ARRIVAL = {"timestamp": 0, "input_length": 900, "output_length": 20, "hash_ids": [1, 2]}


def test_prompts_of_a_file() -> None:
    text = lines({"prompt": "one two"}, {"prompt": "three\nfour", "output_len": 8}) + "\n"
    data = bench.read_dataset(text, parameters(dataset_path="/f", dataset="prompts", prompts=2, output_len=8))
    assert data.output_len == 8 and data.input_tokens is None
    written = [json.loads(line) for line in bench.conversations(data.requests).splitlines()]
    assert [line["conversations"][0]["content"] for line in written] == ["one two", "three\nfour"]
    assert all(len(line["conversations"]) == 2 for line in written)


def test_a_trace() -> None:
    text = lines(ARRIVAL, {**ARRIVAL, "timestamp": 27.5, "output_length": 40}, {**ARRIVAL, "input_length": 5})
    data = bench.read_dataset(text, parameters(dataset_path="/f", dataset="trace", prompts=2, output_len=None))
    assert len(data.requests) == 2 and data.input_tokens == 1800 and data.output_len == 30
    note = bench.remarks({"total_input_tokens": 700}, {**LOAD, "dataset": "trace"}, data.input_tokens)[0]
    assert "have 1800 input tokens, those that were sent 700" in note


@pytest.mark.parametrize(
    ("dataset", "text", "said"),
    [
        ("prompts", "", "/f holds 0"),
        ("prompts", lines({"prompt": "a b"}), "prompts (in sglang_bench_loads) is 2, and /f holds 1"),
        ("prompts", lines({"prompt": "a b"}) + "{", "line 2 is no JSON ("),
        ("prompts", lines([1]), "line 1 is no JSON object"),
        ("prompts", lines({"text": "a"}), "line 1 has no text under prompt"),
        ("prompts", lines({"prompt": " "}), "line 1 has no text under prompt"),
        ("prompts", lines({"prompt": "a b", "output_len": 9}), "line 1 has output_len 9, and the load has 8"),
        ("trace", lines({**ARRIVAL, "timestamp": "0"}), "line 1 has timestamp '0'"),
        ("trace", lines({**ARRIVAL, "output_length": 0}), "line 1 has output_length 0; expected is a number from 1 on"),
        ("trace", lines({**ARRIVAL, "hash_ids": None}), "line 1 has no list under hash_ids"),
    ],
)
def test_a_wrong_file_is_refused_by_its_line(dataset: str, text: str, said: str) -> None:
    with pytest.raises(bench.Refused) as error:
        bench.read_dataset(text, parameters(dataset_path="/f", dataset=dataset, prompts=2, output_len=8))
    assert said in str(error.value)


def test_a_file_goes_by_the_name_that_people_gave_it() -> None:
    asked = parameters(
        dataset="prompts", prompts=2, output_len=8, dataset_path="/var/x/3f2a", dataset_name="chat.jsonl"
    )
    for text, said in ((lines({"text": "a"}), "chat.jsonl, line 1"), (lines({"prompt": "a"}), "chat.jsonl holds 1")):
        with pytest.raises(bench.Refused, match=said) as error:
            bench.read_dataset(text, asked)
        assert "3f2a" not in str(error.value)
    with pytest.raises(bench.Refused) as error:
        bench.file_bytes(asked)
    assert str(error.value).startswith("The dataset's file chat.jsonl cannot be read: No such file")
    assert "/var/x" not in str(error.value) and bench.file_bytes({**asked, "dataset_path": None}) == b""


def test_prompts_that_the_client_left_out_are_not_failed_requests() -> None:
    found = judged(details(errors=[""] * 3, completed=3), prompts=5, input_len=2, output_len=3, dataset="prompts")
    assert found == ["the client sent 3 of 5 requests: it leaves out prompts of less than two tokens"]


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
    # Progress is read from the client's bar.
    assert "--disable-tqdm" not in command and "--dataset-path" not in command


def test_the_command_line_of_datasets_from_files() -> None:
    client = bench.Client("m", set(), None)
    asked = parameters(dataset="prompts", input_len=None, dataset_path="/mine.jsonl")
    command = bench.command_line(client, asked, "/r", "/made.jsonl")
    pairs = dict(zip(command, command[1:]))
    assert pairs["--dataset-name"] == "custom" and pairs["--dataset-path"] == "/made.jsonl"
    assert pairs["--sharegpt-output-len"] == "64" and not any(word.startswith("--random") for word in command)
    asked = parameters(dataset="trace", input_len=None, output_len=None, trace_slowdown=2.0, dataset_path="/t")
    command = bench.command_line(client, asked, "/r", "/t")
    pairs = dict(zip(command, command[1:]))
    assert pairs["--dataset-name"] == "mooncake" and pairs["--mooncake-slowdown-factor"] == "2.0"
    assert "--use-trace-timestamps" in command and not any(word.startswith("--random") for word in command)
    asked = parameters(dataset="token-ids", input_len=64, output_len=8)
    command = bench.command_line(client, asked, "/r")
    assert dict(zip(command, command[1:]))["--dataset-name"] == "random-ids" and "--tokenize-prompt" in command
    asked = parameters(dataset="sharegpt", input_len=None, output_len=None)
    command = bench.command_line(client, asked, "/r")
    assert dict(zip(command, command[1:]))["--dataset-name"] == "sharegpt" and "--random-input-len" not in command


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
import json, os, sys, time, urllib.request
arguments = dict(zip(sys.argv, sys.argv[1:]))
mode = os.environ.get("MODE", "good")
if mode == "hang":
    print("sending requests", flush=True)
    if os.fork() == 0:
        time.sleep(60)
    time.sleep(60)
if mode == "fail":
    raise ValueError("Warmup failed - Please make sure benchmark arguments are correct")
def tell(path):
    try:
        urllib.request.urlopen(arguments["--base-url"] + path).read()
    except OSError:
        pass
n, i, o = (int(arguments.get(name, 8)) for name in ("--num-prompts", "--random-input-len", "--random-output-len"))
print("Warmup completed with 1 sequences. Starting main benchmark run...", flush=True)
time.sleep(0.3)
for done in range(n + 1):
    print(f"\\r {100 * done // n}%|###| {done}/{n} [00:00<00:00, 1.0it/s]", end="", file=sys.stderr, flush=True)
    time.sleep(float(os.environ.get("PAUSE", "0")))
errors = [""] * n
if mode == "gone":
    tell("/die")
    errors = ["ClientConnectorError: Connect call failed"] * n
if mode == "gone-hard":
    tell("/die")
    raise ConnectionError("Max retries exceeded with url: /server_info")
if mode == "warm":
    tell("/hit")
content = {"empty": "\\n", "nan": '{"completed": 0, "duration": NaN, "mean_ttft_ms": NaN}\\n'}.get(mode)
result = {"completed": n - sum(map(bool, errors)), "duration": 2.0, "total_input_tokens": n * i, "total_output_tokens": n * o,
          "request_rate": float("inf"), "server_info": {"api_key": "secret", "internal_states": [{"api_key": "secret"}]},
          "errors": errors}
if mode != "silent":
    with open(arguments["--output-file"], "a") as file:
        file.write(content or json.dumps(result) + "\\n")
if __name__ == "__main__":
    pass
"""


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    state = SimpleNamespace(health=200, flush=200, asked=[], url="", page=None, hits=0)

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            state.asked.append((self.command, self.path))
            if self.path == "/die":
                state.health = 503
            if self.path == "/hit":
                state.hits += 1
            body = (state.page(state) if state.page and self.path == "/metrics" else "").encode()
            found = {"/health": state.health, "/flush_cache": state.flush, "/metrics": 200 if state.page else 404}
            self.send_response(found.get(self.path, 200))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

        def log_message(self, *args: Any) -> None:
            pass

    with serving(Handler) as state.url:
        yield state


@pytest.fixture
def module(
    tmp_path: Path, server: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., dict[str, Any]]]:
    package(tmp_path, {"__init__.py": "", "bench_serving.py": STANDIN})
    # Locating takes the package from PYTHONPATH too; the stand-in needs no virtual environment of its own.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    folder = tmp_path / "jobs"

    def run(mode: str = "good", pause: float = 0.0, **args: Any) -> dict[str, Any]:
        given = {
            "python": sys.executable,
            "url": server.url,
            "model": "/m",
            **LOAD,
            "environment": {"MODE": mode, "PAUSE": pause},
            **{"folder": str(folder), "ready_timeout": 0, "telemetry_period_s": 0.05},
            **args,
        }
        given = {name: value for name, value in given.items() if value is not None}
        with patch_module_args(given), pytest.raises(SystemExit):
            bench.main()
        return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))

    yield run
    sglang_job.stop(str(folder / "job"))


def page(state: SimpleNamespace) -> str:
    tokens = {"sglang:num_running_reqs": 8, "sglang:prompt_tokens_total": 64 + 4096 * state.hits}
    tokens.update({"sglang:cached_tokens_total": 2048 * state.hits} if state.hits else {})
    return "".join(f'{name}{{tp_rank="0"}} {value}\n' for name, value in tokens.items())


def test_a_run(module: Callable[..., dict[str, Any]], server: SimpleNamespace, tmp_path: Path) -> None:
    server.page = page
    result = module(pause=0.01)
    assert result["changed"] is False and result["valid"] is True and result["problems"] == []
    assert result["metrics"]["completed"] == 32 and result["metrics"]["output_tokens"] == 2048
    assert result["load"]["concurrency"] == 8 and result["load"]["request_rate"] is None
    assert result["client"] == {"module": "sglang.bench_serving", "version": None}
    assert server.asked[:2] == [("GET", "/health"), ("POST", "/flush_cache")] and server.asked[-1] == ("GET", "/health")
    assert result["began"] <= result["ended"] and result["began"].endswith("Z")
    told = json.loads(unpacked(result["files"]["raw"]))
    assert told["request_rate"] == float("inf") and "secret" not in unpacked(result["files"]["raw"])
    rows = list(csv.DictReader(io.StringIO(unpacked(result["files"]["telemetry"]))))
    assert len(rows) > 4 and {row["running_requests"] for row in rows[2:]} == {"8.0"} and rows[0]["cpu_percent"] == ""
    assert result["telemetry"]["engine"]["running"]["mean"] == 8 and result["metrics"]["cached_token_ratio"] is None
    jobs = tmp_path / "jobs"
    assert stat.S_IMODE(jobs.stat().st_mode) == 0o700 and list(jobs.iterdir()) == []


def test_a_warm_cache_makes_it_invalid(module: Callable[..., dict[str, Any]], server: SimpleNamespace) -> None:
    server.page = page
    result = module("warm")
    assert result["metrics"]["cached_token_ratio"] == 0.5 and result["valid"] is False
    assert "figures are of a warm cache" in result["problems"][0]


def test_without_telemetry(module: Callable[..., dict[str, Any]], server: SimpleNamespace) -> None:
    result = module(telemetry=False)
    assert result["valid"] and result["telemetry"] is None and set(result["files"]) == {"raw"}
    assert ("GET", "/metrics") not in server.asked


def test_prompts_from_a_file(module: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(lines(*({"prompt": f"say {number}"} for number in range(4))))
    asked = {"dataset": "prompts", "dataset_path": str(path), "prompts": 4, "input_len": None, "output_len": 8}
    result = module(**asked)
    assert result["load"]["file_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert result["load"]["file"] == str(path) and "file" not in module()["load"]
    assert module(**asked, dataset_name="chat.jsonl")["load"]["file"] == "chat.jsonl"
    assert result["load"]["input_len"] is None and result["valid"], result["problems"]
    assert result["command"][result["command"].index("--dataset-path") + 1].endswith("/work/prompts.jsonl")
    assert "dataset prompts needs output_len (in sglang_bench_loads)." in module(**{**asked, "output_len": None})["msg"]
    assert "output_len (in sglang_bench_loads) is 3; expected 4 or more" in module(**{**asked, "output_len": 3})["msg"]
    assert "holds 4" in module(**{**asked, "prompts": 5})["msg"]
    assert "cannot be read: No such file" in module(**{**asked, "dataset_path": "/nonexistent"})["msg"]
    assert (
        "dataset prompts needs dataset_path (file in sglang_bench_loads)"
        in module(**{**asked, "dataset_path": None})["msg"]
    )


def test_a_trace_needs_a_client_that_can_replay_it(
    module: Callable[..., dict[str, Any]], server: SimpleNamespace, tmp_path: Path
) -> None:
    (tmp_path / "t").write_text(lines(ARRIVAL, ARRIVAL))
    asked = {
        "dataset": "trace",
        "dataset_path": str(tmp_path / "t"),
        "prompts": 2,
        "input_len": None,
        "output_len": None,
    }
    result = module(**asked)
    assert "cannot replay a trace" in result["msg"] and server.asked == []
    package(tmp_path, {"bench_serving.py": f"{STANDIN}\nis_mooncake = True\n"})
    result = module(**asked)
    assert result["valid"] and "have 1800 input tokens" in result["notes"][0]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("nan", ["no request was answered"]),
        ("gone", ["no request was answered; the first error: ClientConnectorError"]),
    ],
)
def test_a_load_of_which_nothing_came_back(module: Callable[..., dict[str, Any]], mode: str, said: list[str]) -> None:
    result = module(mode)
    assert result["valid"] is False and result["metrics"]["completed"] == 0
    assert result["problems"][0].startswith(said[0])
    assert "Warmup completed" in unpacked(result["files"]["output"])
    gone = "the server no longer answers after the load"
    assert any(gone in problem for problem in result["problems"]) == (mode == "gone")


def test_a_server_that_dies_with_its_client(module: Callable[..., dict[str, Any]]) -> None:
    said = module("gone-hard")["msg"]
    assert "ended with status 1: ConnectionError: Max retries" in said
    assert "The server no longer answers: http://127.0.0.1:" in said and "/health gives HTTP 503" in said


# --- the job


def test_a_run_that_is_cut_off_is_followed_and_its_result_is_taken_once(
    module: Callable[..., dict[str, Any]], server: SimpleNamespace
) -> None:
    first = module(pause=0.05, slice=0.8)
    assert first["unfinished"] is True and "metrics" not in first
    assert first["progress"] == "the client starts" or " %, " in first["progress"]
    # Another task of the same load, as of a run that was begun again, takes it up; nothing is begun twice.
    again = module(pause=0.05)
    assert again["valid"] is True and server.asked.count(("POST", "/flush_cache")) == 1
    module(pause=0.05)
    assert server.asked.count(("POST", "/flush_cache")) == 2


def test_a_result_that_nobody_took_is_found(
    module: Callable[..., dict[str, Any]], server: SimpleNamespace, tmp_path: Path
) -> None:
    assert module(slice=0)["unfinished"] is True
    sglang_job.wait(str(tmp_path / "jobs/job"), 20)
    assert module()["metrics"]["completed"] == 32 and server.asked.count(("POST", "/flush_cache")) == 1


def test_a_failure_that_nobody_took_is_no_result(module: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    marker = tmp_path / "sglang/bench_serving.py"
    marker.write_text("raise ValueError('once')\nif __name__ == '__main__': pass\n")
    assert module(slice=0)["unfinished"] is True
    sglang_job.wait(str(tmp_path / "jobs/job"), 20)
    marker.write_text(STANDIN)
    assert module()["valid"] is True


def test_one_load_at_a_time(module: Callable[..., dict[str, Any]]) -> None:
    assert module("hang", slice=0)["unfinished"] is True
    said = module(seed=2)["msg"]
    assert "Another load is measured here since 20" in said and "stop: true" in said
    assert "32 requests, 8 at once, 128 in, 64 out, seed 1, of http://127.0.0.1:" in said
    assert "is gone" in module(seed=2, attached=True, slice=0)["msg"]


def test_a_load_is_stopped(module: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    nothing = dict.fromkeys(("python", "url", "model", *LOAD))
    assert module(stop=True, **nothing)["stopped"] is False
    marker = f"--tag=stop-{os.getpid()}"
    module("hang", slice=1.5, extra_args=[marker])
    assert module(stop=True, _ansible_check_mode=True, **nothing)["changed"] is True and running(marker)
    result = module(stop=True, **nothing)
    assert result["changed"] is True and result["msg"].startswith("Ended: 32 requests")
    assert running(marker) == [] and module()["valid"] is True


def test_a_job_that_was_killed_says_so(module: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    module("hang", slice=1.0)
    sglang_job.stop(str(tmp_path / "jobs/job"))
    said = module("hang", slice=0, attached=True)["msg"]
    assert "ended without a result" in said and "while the client starts" in said


def test_options_of_a_measurement_are_asked_for(module: Callable[..., dict[str, Any]]) -> None:
    assert "missing: concurrency" in module(concurrency=None)["msg"]
    assert module(input_len=None)["msg"] == "dataset random-ids needs input_len (in sglang_bench_loads)."
    assert "gpus is [0, -1]; expected indexes" in module(gpus=[0, -1])["msg"]
    assert "telemetry_period_s is 0.0" in module(telemetry_period_s=0.0)["msg"]


def test_a_folder_of_somebody_else_is_refused(module: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert "is no folder of the present user" in module(folder=str(tmp_path / "link"))["msg"]
    (tmp_path / "file").write_text("")
    assert "cannot be used" in module(folder=str(tmp_path / "file"))["msg"]


@pytest.mark.parametrize(
    ("gpus", "visible", "asked"),
    [([2, 0], "1", "2,0"), ([], "1, 3", "1,3"), ([], None, "")],
)
def test_gpus_that_are_looked_at(gpus: list[int], visible: str | None, asked: str) -> None:
    params = parameters(gpus=gpus, environment={"CUDA_VISIBLE_DEVICES": visible} if visible else {})
    assert bench.question(params, [], "/w", "/r", None)["gpus"] == asked
    assert bench.digest(params, b"") != bench.digest({**params, "gpus": [7]}, b"")


def test_gpus_that_the_server_was_given() -> None:
    assert bench.visible({"CUDA_VISIBLE_DEVICES": "2, 3"}) == "2,3" and bench.visible({}) == ""
    assert bench.visible({"CUDA_VISIBLE_DEVICES": "GPU-0a1b,GPU-2c"}) == "GPU-0a1b,GPU-2c"
    assert bench.visible({"CUDA_VISIBLE_DEVICES": "0;reboot"}) == "" == bench.visible({"CUDA_VISIBLE_DEVICES": ""})


def test_the_action_plugin_is_that_of_modules_in_slices() -> None:
    plugin = Path(bench.__file__).parents[1] / "action_plugins/sglang_bench.py"
    assert plugin.is_symlink() and plugin.resolve().name == "flashinfer_kernels.py"


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
        ("empty", "ended with status 0 but left no result (it is empty)"),
    ],
)
def test_a_client_that_fails(module: Callable[..., dict[str, Any]], mode: str, said: str) -> None:
    result = module(mode)
    assert result["failed"] and said in result["msg"] and result["command"][1:3] == ["-m", "sglang.bench_serving"]
    words = unpacked(result["files"]["output"])
    assert set(result["files"]) == {"output"} and words.splitlines()[-1] == result["last_lines"][-1]
    assert result["began"] <= result["ended"] and result["ended"].endswith("Z")


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
    assert "was killed. Raise timeout (sglang_bench_timeout)" in result["msg"] and result["last_lines"] == [
        "sending requests"
    ]
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
    assert f"{name} (in sglang_bench_loads) is {value}" in module(**{name: value})["msg"]


def test_check_mode_measures_nothing(module: Callable[..., dict[str, Any]], server: SimpleNamespace) -> None:
    result = module(_ansible_check_mode=True)
    assert result["skipped"] is True and result["changed"] is False and server.asked == []
