#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Put one load on an SGLang server with the engine's own client, and return what it measured."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_bench
short_description: Measure an SGLang server with the engine's own bench_serving
version_added: "0.1.0"
description:
  - Runs one load with the benchmark client of an installed release, C(sglang.benchmark.serving) where the release has it,
    C(sglang.bench_serving) before, and returns its figures under names that do not depend on the version.
  - Runs on the node that serves, without a shell, as a job apart from the task. It goes on when the task is cut off; a task that
    wants the same load follows it, or takes its result if that was not taken. An action plugin shows how far it is.
  - Looks at GPUs (C(nvidia-smi)), at the host and at the engine's C(/metrics) meanwhile (RV(telemetry)).
  - Says when a result does not mean what was asked (RV(valid), RV(problems)); the numbers are returned all the same.
  - Measures and changes nothing, apart from the server's prefix cache.
options:
  python:
    description: The Python of a virtual environment that holds sglang. Its release may differ from the server's.
    type: path
  url:
    description: Where the server answers, without a path, for example V(http://127.0.0.1:30000).
    type: str
  model:
    description: Model folder or hub name whose tokenizer the client uses.
    type: str
  served_model:
    description: The name that the server serves the model under, if it is not O(model).
    type: str
  concurrency:
    description: Requests in flight at most.
    type: int
  prompts:
    description: Requests in all.
    type: int
  input_len:
    description: Input tokens a request. Random datasets need it.
    type: int
  output_len:
    description: Output tokens a request. Random datasets and V(prompts) need it.
    type: int
  range_ratio:
    description:
      - Lengths are drawn uniformly from [length * ratio, length]. 1.0 fixes them.
      - The client's own default is 0.0, which halves the mean load of what the lengths seem to say.
    type: float
    default: 1.0
  seed:
    description: Seed of the prompts. The same seed sends the same prompts, which a warm prefix cache then answers.
    type: int
    default: 1
  dataset:
    description:
      - V(random-ids) draws token ids and sends them as text, as published runs do; a tokenizer may count some per cent more.
        V(token-ids) sends the ids themselves, whose number is exact. Neither needs a download.
      - V(prompts) and V(trace) are read from O(dataset_path). Any other word is handed to the client.
      - V(prompts) sends texts as they are, a JSON object with C(prompt) a line. The client draws O(prompts) of them by the seed and
        gives all one O(output_len); a C(output_len) of a line must be the same.
      - V(trace) sends the first O(prompts) requests of a trace in Mooncake's format when they came, a JSON object with C(timestamp)
        (milliseconds), C(input_length), C(output_length) and C(hash_ids) a line. The client makes the prompts of the hash_ids, and
        those are not as long as C(input_length) says.
    type: str
    default: random-ids
  dataset_path:
    description: The file of the dataset, on the node.
    type: path
  dataset_name:
    description: What people call the file of O(dataset_path), as its name on the controller. By default the path itself.
    type: str
  trace_slowdown:
    description: How many times slower than recorded a trace is sent.
    type: float
    default: 1.0
  request_rate:
    description: Requests a second, arriving at random. Without it all wait at once for a free place of O(concurrency).
    type: float
  warmup:
    description: Requests sent before the measurement.
    type: int
    default: 1
  flush_cache:
    description: Empty the server's prefix cache before the measurement.
    type: bool
    default: true
  timeout:
    description: Seconds after which the client is killed.
    type: int
    default: 3600
  ready_timeout:
    description: Seconds to wait for the server's C(/health) before the load.
    type: int
    default: 60
  telemetry:
    description: Whether to look at the node and the engine meanwhile.
    type: bool
    default: true
  telemetry_period_s:
    description: Seconds between two looks. The engine is asked more seldom where its answer takes long.
    type: float
    default: 0.5
  gpus:
    description:
      - Indexes of the GPUs that the server uses, which alone are looked at. Empty takes those of C(CUDA_VISIBLE_DEVICES) in
        O(environment), and without it finds out whose processes they run. Where that cannot be told, as in a container, all GPUs
        of the node count, and C(missing) of RV(telemetry) says so.
    type: list
    elements: int
    default: []
  folder:
    description: Folder on the node for the job, mode 0700. One job at a time runs in it.
    type: path
    default: /var/tmp/sglang-bench
  stop:
    description: End what runs in O(folder) instead of measuring.
    type: bool
    default: false
  environment:
    description: Environment variables for the client, beside the module's own.
    type: dict
    default: {}
  api_key:
    description: The server's API key, handed to the client in its environment.
    type: str
  extra_args:
    description: More arguments for the client, appended as they are.
    type: list
    elements: str
    default: []
  slice:
    description: Internal. Seconds to wait in one run of the module.
    type: float
  attached:
    description: Internal. Whether an earlier run of this task began it.
    type: bool
    default: false
notes:
  - Unless O(stop) is set, O(python), O(url), O(model), O(concurrency) and O(prompts) are needed.
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Measures nothing., details: []}
  diff_mode: {support: none, description: Results are returned., details: []}
"""

EXAMPLES = r"""
- name: Measure 64 requests in flight, 1024 tokens in, 256 out
  sglang_bench:
    python: /opt/sglang/releases/glm5-1a2b3c/venv/bin/python
    url: http://127.0.0.1:30000
    model: /var/lib/sglang/models/GLM-5-NVFP4
    served_model: glm-5
    concurrency: 64
    prompts: 256
    input_len: 1024
    output_len: 256
  register: bench

- name: End what is measured
  sglang_bench:
    stop: true
"""

RETURN = r"""
load:
  description:
    - What was asked for, by parameter; request_rate is null for no limit. Where there is an O(dataset_path), C(file) is its
      O(dataset_name), and C(file_sha256) is of its content.
  returned: success
  type: dict
metrics:
  description:
    - The figures. Latencies are dicts of mean, median, p90, p95 and p99 in milliseconds, null where nothing was measured.
    - Percentiles of C(ttft_ms) and C(itl_ms) that a release does not report (0.5.9) are computed from its requests.
    - C(total_throughput_tokens_per_s) counts input and output tokens, C(output_throughput_tokens_per_s) generated ones only.
  returned: success
  type: dict
  contains:
    completed:
      description: Requests answered.
      type: int
    failed:
      description: Requests asked for and not answered.
      type: int
    duration_s:
      description: Seconds from the first request to the last answer, without warm-up.
      type: float
    request_throughput_per_s:
      description: Requests answered a second.
      type: float
    input_tokens:
      description: Input tokens of the answered requests.
      type: int
    output_tokens:
      description: Generated tokens, as the server counts them.
      type: int
    input_throughput_tokens_per_s:
      description: Input tokens a second.
      type: float
    output_throughput_tokens_per_s:
      description: Generated tokens a second.
      type: float
    total_throughput_tokens_per_s:
      description: Input and generated tokens a second.
      type: float
    concurrency_mean:
      description: Requests in flight on average.
      type: float
    accept_length:
      description: Tokens accepted a step with speculative decoding, else null.
      type: float
    cached_token_ratio:
      description: Share of the input tokens that the prefix cache had, by the server's own counters; null where it shows none.
      type: float
    warm_token_ratio:
      description: What of it neither the common beginning of all texts nor chance explains, so that the cache was warm.
      type: float
    ttft_ms:
      description: Time to the first token (TTFT).
      type: dict
    tpot_ms:
      description: Time per output token (TPOT), a request's time after its first token over the tokens after it.
      type: dict
    itl_ms:
      description: Inter-token latency (ITL), the time between two pieces of a stream, over all pieces of all requests.
      type: dict
    e2e_ms:
      description: Time from request to last token.
      type: dict
server_gone:
  description: Whether it failed because no server answered within O(ready_timeout), so that the next load would too.
  returned: when no load could be put on
  type: bool
valid:
  description: Whether the measured load is the load that was asked for.
  returned: success
  type: bool
problems:
  description: Why it is not.
  returned: success
  type: list
  elements: str
notes:
  description: What to know when reading the figures; does not make them invalid.
  returned: success
  type: list
  elements: str
client:
  description: The client that ran. C(module) and its sglang C(version).
  returned: success
  type: dict
command:
  description: The client's command line as run.
  returned: always, unless it could not be made
  type: list
  elements: str
raw:
  description: The client's own figures by its own names, without per-request figures and server_info. Infinity is the text "inf".
  returned: success
  type: dict
last_lines:
  description: The last 20 lines that the client said.
  returned: when the client was run and failed
  type: list
  elements: str
began:
  description: When the client was started, UTC.
  returned: when the client was run to its end, well or not
  type: str
ended:
  description: When it had ended, UTC.
  returned: when the client was run to its end, well or not
  type: str
telemetry:
  description: What was seen meanwhile, as C($defs/telemetry) of C(schemas/run.schema.json). Null where it was not asked for.
  returned: success
  type: dict
files:
  description:
    - Base64 of gzip. C(raw) is the client's JSON line, with the server's keys blanked, and without its per-request lists where it
      would be too long to return. Texts of prompts and answers are never in it; texts of errors are.
    - C(telemetry) is every sample as CSV, with seconds from the first request, where there is telemetry.
    - C(output) is the end of what the client said, at most 64 KiB, where it failed or the result is not valid.
  returned: success, and C(output) alone where the client was run and failed
  type: dict
stopped:
  description: Whether something ran.
  returned: when O(stop) is set
  type: bool
"""

import base64
import gzip
import hashlib
import inspect
import json
import math
import os
import pwd
import re
import shutil
import stat
import sys
import urllib.parse
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set

from ansible.module_utils import sglang_bencher, sglang_http, sglang_job, sglang_metrics, sglang_options, sglang_ports
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_log import last_error, shorten
from ansible.module_utils.sglang_node import now

SPEC: Dict[str, Any] = {
    "python": {"type": "path"},
    "url": {"type": "str"},
    "model": {"type": "str"},
    "served_model": {"type": "str"},
    "concurrency": {"type": "int"},
    "prompts": {"type": "int"},
    "input_len": {"type": "int"},
    "output_len": {"type": "int"},
    "range_ratio": {"type": "float", "default": 1.0},
    "seed": {"type": "int", "default": 1},
    "dataset": {"type": "str", "default": "random-ids"},
    "dataset_path": {"type": "path"},
    "dataset_name": {"type": "str"},
    "trace_slowdown": {"type": "float", "default": 1.0},
    "request_rate": {"type": "float"},
    "warmup": {"type": "int", "default": 1},
    "flush_cache": {"type": "bool", "default": True},
    "timeout": {"type": "int", "default": 3600},
    "ready_timeout": {"type": "int", "default": 60},
    "telemetry": {"type": "bool", "default": True},
    "telemetry_period_s": {"type": "float", "default": 0.5},
    "gpus": {"type": "list", "elements": "int", "default": []},
    "folder": {"type": "path", "default": "/var/tmp/sglang-bench"},
    "stop": {"type": "bool", "default": False},
    "environment": {"type": "dict", "default": {}},
    "api_key": {"type": "str", "no_log": True},
    "extra_args": {"type": "list", "elements": "str", "default": []},
    "slice": {"type": "float"},
    "attached": {"type": "bool", "default": False},
}
NEEDED = ("python", "url", "model", "concurrency", "prompts")
LOAD = (
    "url", "model", "served_model", "concurrency", "prompts", "input_len", "output_len", "range_ratio", "seed", "dataset",
    "dataset_path", "trace_slowdown", "request_rate", "warmup", "flush_cache", "extra_args",
)  # fmt: skip
# Ours that the client knows by another name.
DATASETS = {"token-ids": "random-ids", "prompts": "custom", "trace": "mooncake"}
# What a result is the result of, beside the content of a dataset's file.
DECISIVE = (*LOAD, "python", "environment", "telemetry", "telemetry_period_s", "gpus")

# The client's name for each figure: the same from 0.5.8 to 0.5.23.
FIGURES = {
    "completed": "completed",
    "duration_s": "duration",
    "request_throughput_per_s": "request_throughput",
    "input_tokens": "total_input_tokens",
    "output_tokens": "total_output_tokens",
    "input_throughput_tokens_per_s": "input_throughput",
    "output_throughput_tokens_per_s": "output_throughput",
    "total_throughput_tokens_per_s": "total_throughput",
    "concurrency_mean": "concurrency",
    "accept_length": "accept_length",
}
LATENCIES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "itl_ms": "itl", "e2e_ms": "e2e_latency"}
STATISTICS = ("mean", "median", "p90", "p95", "p99")

LAST_LINES = 20
# Bytes of the client's last words that are kept.
OUTPUT = 2**16
# Fewer requests than so many times the places fill and empty them, and are never steady.
STEADY = 3
# Of a gzip file, to be returned through Ansible.
LARGEST = 24 * 2**20
# A cache that answers more than this of random prompts is warm.
WARM = 0.01
# Tokens that all texts of a tokenizer begin with, at most.
BEGINNING = 2
# What bench.yml calls an option of this module.
BENCH = {
    **dict.fromkeys(("concurrency", "prompts", "input_len", "output_len"), "in sglang_bench_loads"),
    **dict.fromkeys(("range_ratio", "trace_slowdown"), "in sglang_bench_loads"),
    **{"dataset_path": "file in sglang_bench_loads", "timeout": "sglang_bench_timeout"},
}
# The newest first: what comes later is kept by releases only as a deprecated way to the first.
CLIENTS = (("sglang.benchmark.serving", "benchmark/serving.py"), ("sglang.bench_serving", "bench_serving.py"))


# --- the client -------------------------------------------------------------------------------------------------------


class Client(NamedTuple):
    """The benchmark client of a release: what to give to `python -m`, its options, the release, and whether it replays traces."""

    module: str
    options: Set[str]
    version: Optional[str]
    replays: bool = False


# Run by the release's Python: finds sglang without importing it, which takes seconds and may fail.
LOCATE = """
import importlib.util, importlib.metadata, json
spec = importlib.util.find_spec("sglang")
try:
    version = importlib.metadata.version("sglang")
except importlib.metadata.PackageNotFoundError:
    version = None
print(json.dumps({"folders": list(spec.submodule_search_locations or []) if spec else [], "version": version}))
"""


def find_client(folders: Sequence[str], version: Optional[str]) -> Optional[Client]:
    """The client in the folders of an installed sglang package, by what is there, not by its version."""
    for module, path in CLIENTS:
        for folder in folders:
            try:
                with open(os.path.join(folder, path), encoding="utf-8") as file:
                    source = file.read()
            except OSError:
                continue
            if "__main__" in source:
                # 0.5.9 and 0.5.15 have the dataset and fail at once: they take a trace's first line for a made prompt.
                replays = "is_mooncake" in source
                return Client(module, set(re.findall(r'"(--[a-z0-9-]+)"', source)), version, replays)
    return None


def command_line(client: Client, params: Dict[str, Any], result: str, dataset_path: Optional[str] = None) -> List[str]:
    """The client's command line for a load; `result` is where it writes its JSON line, `dataset_path` what it reads."""
    dataset = DATASETS.get(params["dataset"], params["dataset"])
    command = [params["python"], "-m", client.module, "--backend", "sglang", "--base-url", params["url"].rstrip("/")]
    command += ["--model", params["model"], "--tokenizer", params["model"], "--dataset-name", dataset]
    if dataset_path:
        command += ["--dataset-path", dataset_path]
    if params["served_model"] and "--served-model-name" in client.options:
        command += ["--served-model-name", params["served_model"]]
    command += ["--num-prompts", str(params["prompts"]), "--max-concurrency", str(params["concurrency"])]
    if params["dataset"] == "token-ids":
        command.append("--tokenize-prompt")  # which, for this client, leaves them as ids
    if params["dataset"] == "prompts":
        command += ["--sharegpt-output-len", str(params["output_len"])]
    elif params["dataset"] == "trace":
        command += ["--use-trace-timestamps", "--mooncake-slowdown-factor", str(params["trace_slowdown"])]
    else:
        for name, option in (("input_len", "--random-input-len"), ("output_len", "--random-output-len")):
            command += [option, str(params[name])] if params[name] else []
        command += ["--random-range-ratio", str(params["range_ratio"])]
    command += ["--seed", str(params["seed"]), "--warmup-requests", str(params["warmup"])]
    if params["request_rate"]:
        command += ["--request-rate", str(params["request_rate"])]
    if params["flush_cache"]:
        command.append("--flush-cache")
    command += ["--output-details", "--output-file", result]
    return command + list(params["extra_args"])


def client_environment(params: Dict[str, Any], inherited: Dict[str, str]) -> Dict[str, str]:
    """The client's environment: the module's, what was given, and what keeps the client off a proxy and the release."""
    host = urllib.parse.urlsplit(params["url"]).hostname or ""
    environment = {**inherited, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    for name in ("no_proxy", "NO_PROXY"):
        environment[name] = ",".join(part for part in (inherited.get(name, ""), host) if part)
    if params["api_key"]:
        environment["OPENAI_API_KEY"] = params["api_key"]
    environment.update({str(name): str(value) for name, value in params["environment"].items()})
    # The server's own: SGLang makes folders in it when it is imported, and those of root would be closed to the server.
    environment.pop("SGLANG_CACHE_DIR", None)
    return environment


# --- the dataset --------------------------------------------------------------------------------------------------------


def drawn(dataset: str) -> bool:
    """Whether prompts are drawn at random, so that their lengths are as asked for."""
    return dataset == "token-ids" or dataset.startswith("random")


class Refused(Exception):
    """What cannot be measured as it was asked for, or was not: text for people, and facts for programs."""

    def __init__(self, text: str, **facts: Any) -> None:
        super().__init__(text)
        self.facts = facts


class Dataset(NamedTuple):
    """A dataset's file: the requests of the load and what they come to. Lengths are None where the file has none."""

    requests: List[Dict[str, Any]]
    input_tokens: Optional[int]
    output_len: Optional[float]


def file_name(params: Dict[str, Any]) -> str:
    """What people know a dataset's file by; empty where the load has none."""
    return (params["dataset_name"] or params["dataset_path"]) if params["dataset_path"] else ""


def number_of(entry: Dict[str, Any], name: str, least: float) -> bool:
    value = entry.get(name)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= least


def wrong_prompt(entry: Dict[str, Any], output_len: int) -> str:
    """What is wrong with a line of prompts; empty when nothing is."""
    if not isinstance(entry.get("prompt"), str) or not entry["prompt"].strip():
        return "has no text under prompt"
    if entry.get("output_len", output_len) != output_len:
        return (
            f"has output_len {entry['output_len']!r}, and the load has {output_len}: the client gives all requests one length. "
            "Leave it out, or measure these lines as a load of their own"
        )
    return ""


def wrong_arrival(entry: Dict[str, Any]) -> str:
    """What is wrong with a line of a trace; empty when nothing is."""
    for name, least in (("timestamp", 0), ("input_length", 1), ("output_length", 1)):
        if not number_of(entry, name, least):
            return f"has {name} {entry.get(name)!r}; expected is a number from {least} on"
    if not isinstance(entry.get("hash_ids"), list):
        return "has no list under hash_ids, of which the client makes the prompt"
    return ""


def read_dataset(text: str, params: Dict[str, Any]) -> Dataset:
    """The requests in a file's text. Refused names the first line that is none, or says that there are too few."""
    name, trace, entries = file_name(params), params["dataset"] == "trace", []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise Refused(f"{name}, line {number} is no JSON ({error}). Expected is one JSON object a line.") from None
        wrong = "is no JSON object" if not isinstance(entry, dict) else ""
        wrong = wrong or (wrong_arrival(entry) if trace else wrong_prompt(entry, params["output_len"]))
        if wrong:
            raise Refused(f"{name}, line {number} {wrong}.")
        entries.append(entry)
    if len(entries) < params["prompts"]:
        raise Refused(
            f"{option('prompts')} is {params['prompts']}, and {name} holds {len(entries)}: none is sent twice, or the cache would "
            "answer. Ask for no more, or give a longer file."
        )
    if not trace:
        return Dataset(entries, None, float(params["output_len"]))
    entries = entries[: params["prompts"]]
    return Dataset(
        entries,
        sum(int(entry["input_length"]) for entry in entries),
        sum(entry["output_length"] for entry in entries) / len(entries),
    )


def conversations(requests: Sequence[Dict[str, Any]]) -> str:
    """Prompts as the client's dataset `custom` reads them. It wants an answer beside each, whose length it does not use."""
    lines = [{"conversations": [{"content": entry["prompt"]}, {"content": "-"}]} for entry in requests]
    return "".join(json.dumps(line) + "\n" for line in lines)


def file_bytes(params: Dict[str, Any]) -> bytes:
    """The dataset's file; empty where the load has none."""
    if not params["dataset_path"]:
        return b""
    try:
        with open(params["dataset_path"], "rb") as stream:
            return stream.read()
    except OSError as error:
        remedy = (
            "Its copy on the node is gone or closed: run again, which brings it anew."
            if params["dataset_name"]
            else "Expected is a file on the node."
        )
        raise Refused(f"The dataset's file {file_name(params)} cannot be read: {error.strerror}. {remedy}") from None


# --- the result -------------------------------------------------------------------------------------------------------


def parse_result(text: str) -> Dict[str, Any]:
    """The last whole JSON line that the client wrote. Python's Infinity and NaN are accepted, as Python writes them.

    Raises ValueError, with what is wrong, when there is none.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("it is empty")
    try:
        result = json.loads(lines[-1])
    except ValueError as error:
        raise ValueError(f"its last line is not whole JSON ({error}): {shorten(lines[-1], 120)}") from error
    if not isinstance(result, dict) or "completed" not in result:
        raise ValueError(f"its last line is not a result of bench_serving: {shorten(lines[-1], 120)}")
    return result


def clean(value: Any) -> Any:
    """A value that any JSON parser reads: NaN, which measures nothing, is null; Infinity is the text "inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {key: clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item) for item in value]
    return value


def raw_figures(result: Dict[str, Any]) -> Dict[str, Any]:
    """The client's line without per-request lists, and without server_info, which may hold keys."""
    return {key: clean(value) for key, value in result.items() if key != "server_info" and not isinstance(value, list)}


def number(value: Any) -> Optional[float]:
    """A finite number or None."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if usable else None


def percentile(values: Sequence[float], percent: float) -> Optional[float]:
    """Linear interpolation between the two nearest values, as numpy's default, which the client uses."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Request(NamedTuple):
    """One answered request, in seconds: to the first token, and between tokens."""

    ttft: float
    itl: List[float]


def answered(result: Dict[str, Any]) -> List[Request]:
    """The answered requests of a line written with --output-details; none without it."""
    columns = [result.get(name) for name in ("ttfts", "itls", "errors")]
    if not all(isinstance(column, list) for column in columns):
        return []
    return [Request(ttft, itl) for ttft, itl, error in zip(*columns) if not error]


def samples_ms(requests: Sequence[Request]) -> Dict[str, List[float]]:
    """The latencies that the client writes by request, in milliseconds.

    It does not write a request's whole time: the sum of the others leaves out the end of the stream, and percentiles
    of it would not fit the client's own.
    """
    return {
        "ttft_ms": [request.ttft * 1000 for request in requests],
        "itl_ms": [gap * 1000 for request in requests for gap in request.itl],
    }


def latencies(result: Dict[str, Any]) -> Dict[str, Dict[str, Optional[float]]]:
    """Each latency's statistics: the client's own; missing percentiles from its requests where it writes them."""
    samples = samples_ms(answered(result))
    measured = bool(number(result.get("completed")))
    found: Dict[str, Dict[str, Optional[float]]] = {}
    for name, theirs in LATENCIES.items():
        found[name] = {}
        for statistic in STATISTICS:
            value = number(result.get(f"{statistic}_{theirs}_ms"))
            if value is None and statistic.startswith("p"):
                value = percentile(samples.get(name, []), float(statistic[1:]))
            # The client reports 0 for a latency that no request has.
            found[name][statistic] = value if measured else None
    return found


def explained(requests: int, tokens: float, vocabulary: int) -> float:
    """Share of random prompts' tokens that a cold prefix cache may have of them, 0 to 1.

    All texts begin with the same token or two. And the client's prompts are runs of consecutive ids from a beginning drawn out of
    the vocabulary, so that two that begin alike are the same: of n prompts some n*n/2V pairs are, give or take three times the root
    of that. 512 prompts over 4,096 ids had 5.3 and 5.9 %, 6.3 % being the mean.
    """
    if not requests or not tokens:
        return 0.0
    pairs = requests * requests / (2 * vocabulary) if vocabulary else 0.0
    return min(1.0, BEGINNING * requests / tokens + (pairs + 3 * math.sqrt(pairs)) / requests)


def vocabulary(model: str) -> int:
    """Ids of a model's tokenizer, by its config.json; 0 where it is not a folder, or does not say."""
    try:
        with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError):
        return 0
    for part in (config, config.get("text_config") if isinstance(config, dict) else None):
        size = part.get("vocab_size") if isinstance(part, dict) else None
        if isinstance(size, int) and size > 0:
            return size
    return 0


def metrics(
    result: Dict[str, Any], prompts: int, cached: Optional[Dict[str, float]] = None, ids: int = 0
) -> Dict[str, Any]:
    """The figures under this module's names. `cached` is what the engine's counters say (sglang_bencher), `ids` the vocabulary."""
    figures: Dict[str, Any] = {name: number(result.get(theirs)) for name, theirs in FIGURES.items()}
    figures["completed"] = int(figures["completed"] or 0)
    figures["failed"] = max(0, prompts - figures["completed"])
    ratio = round(cached["cached_tokens"] / cached["prompt_tokens"], 4) if cached else None
    figures["cached_token_ratio"] = figures["warm_token_ratio"] = ratio
    if ratio:
        cold = explained(figures["completed"], figures["input_tokens"] or 0, ids)
        figures["warm_token_ratio"] = round(max(0.0, ratio - cold), 4)
    return {**figures, **latencies(result)}


def sent(result: Dict[str, Any], load: Dict[str, Any]) -> int:
    """Requests that the client sent: it leaves out prompts that it does not like, and says so nowhere."""
    errors = result.get("errors")
    return len(errors) if isinstance(errors, list) else load["prompts"]


def warm_cache(figures: Dict[str, Any], load: Dict[str, Any]) -> str:
    """Whether random prompts met a warm prefix cache; empty when not."""
    if (figures.get("warm_token_ratio") or 0) <= WARM or not drawn(load["dataset"]):
        return ""
    return (
        f"{100 * figures['cached_token_ratio']:.1f} % of the input tokens came from the prefix cache: the figures are of a warm "
        "cache, and flatter. Take another seed and flush the cache; where that was done, others use the server."
    )


def problems(result: Dict[str, Any], figures: Dict[str, Any], load: Dict[str, Any]) -> List[str]:
    """Why the measured load is not the one that was asked for."""
    found = []
    completed, failed = figures["completed"], figures["failed"]
    if failed:
        errors = [str(error) for error in result.get("errors") or [] if error]
        first = f"; the first error: {shorten(errors[0].strip().splitlines()[-1], 200)}" if errors else ""
        none = "no request was answered" if not completed else f"{failed} of {load['prompts']} requests failed"
        if sent(result, load) < load["prompts"]:
            none = (
                f"the client sent {sent(result, load)} of {load['prompts']} requests: it leaves out prompts of less than two tokens"
                f"{'' if sent(result, load) == completed else f', and {completed} were answered'}"
            )
        found.append(f"{none}{first}")
    requests = answered(result)
    silent = sum(request.ttft == 0 for request in requests)
    if silent:
        # Seen with 0.5.23: an error inside a stream of status 200 counts as an answer of all the tokens asked for.
        found.append(
            f"{silent} of {len(requests)} requests brought no text, and the client counts them as answered in full. Look in the "
            "server's log for refused requests (input longer than the context?); random weights can have the same effect."
        )
    random = load["range_ratio"] == 1.0 and drawn(load["dataset"])
    if completed and (random or load["dataset"] == "prompts"):
        asked, got = completed * load["output_len"], figures["output_tokens"] or 0
        if got < asked:
            found.append(
                f"{got:.0f} output tokens instead of {asked} ({completed} x {load['output_len']}): requests ended early. "
                "Expected that the end-of-text token is ignored; is --disable-ignore-eos set, or the context too short?"
            )
    if completed and random:
        asked, got = completed * load["input_len"], figures["input_tokens"] or 0
        if got != asked:
            found.append(f"{got:.0f} input tokens instead of {asked} ({completed} x {load['input_len']})")
    warm = warm_cache(figures, load)
    return [*found, warm] if warm else found


def remarks(
    result: Dict[str, Any],
    load: Dict[str, Any],
    trace_tokens: Optional[int] = None,
    figures: Optional[Dict[str, Any]] = None,
) -> List[str]:
    """What to know when reading the figures. `trace_tokens` are a trace's own input tokens."""
    found = []
    if trace_tokens:
        found.append(
            f"the trace's requests have {trace_tokens} input tokens, those that were sent {result.get('total_input_tokens')}: the "
            "client makes prompts of the trace's hash_ids, with their shared beginnings and at lengths of its own."
        )
    arrivals = load["request_rate"] or load["dataset"] == "trace"
    told = figures or {}
    chance = (told.get("cached_token_ratio") or 0) - (told.get("warm_token_ratio") or 0)
    if drawn(load["dataset"]) and chance > WARM:
        found.append(
            f"{100 * chance:.1f} % of the input tokens came from the prefix cache by chance: the client draws runs of consecutive "
            "token ids, and some of so many begin alike."
        )
    if load["prompts"] < load["concurrency"]:
        found.append(f"{load['prompts']} requests never fill {load['concurrency']} places: the concurrency was lower.")
    elif load["prompts"] < STEADY * load["concurrency"] and not arrivals:
        found.append(
            f"for {load['concurrency']} requests in flight only {load['prompts']} are sent: no steady window, since places fill "
            f"and empty most of the time. Ask for at least three times as many, {option('prompts')} {STEADY * load['concurrency']}."
        )
    counted = [length for length in result.get("input_lens") or [] if isinstance(length, int)]
    if (
        len(counted) == result.get("completed")  # a failed request has no count of the server's
        and drawn(load["dataset"])
        and sum(counted) != (number(result.get("total_input_tokens")) or 0)
    ):
        found.append(
            f"the server counted {sum(counted)} input tokens, the client {result.get('total_input_tokens')}: throughput "
            "figures use the client's. Random texts do not always tokenize back to the length that was drawn; the dataset "
            "token-ids is exact."
        )
    return found


def without_texts(result: Dict[str, Any]) -> Dict[str, Any]:
    """The client's line without lists that hold texts: those of prompts and answers are whoever's they are. Errors stay."""
    return {
        name: value
        for name, value in result.items()
        if name == "errors" or not (isinstance(value, list) and holds_text(value))
    }


def holds_text(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return any(holds_text(item) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, str)


def output_file(text: str, key: Optional[str]) -> Dict[str, str]:
    """The end of what the client said for `files`, base64 of gzip, without the server's key; empty where it said nothing.

    Ansible blanks the key in texts, and cannot in packed ones.
    """
    text = text.replace(key, "***") if key else text
    end = text.encode("utf-8")[-OUTPUT:]
    if len(end) == OUTPUT:
        end = end.partition(b"\n")[2] or end
    return {"output": base64.b64encode(packed(end.decode("utf-8", "replace"))).decode("ascii")} if end.strip() else {}


def packed(text: str) -> bytes:
    return gzip.compress(text.encode("utf-8"), mtime=0)


def raw_file(result: Dict[str, Any], largest: int = LARGEST) -> tuple[str, str]:
    """The client's line for a file, base64 of gzip, and a note where its per-request lists had to be left out."""
    kept, note = sglang_options.blanked(without_texts(result)), ""
    content = packed(json.dumps(kept) + "\n")
    if len(content) > largest:
        note = f"the client's own line is without its lists by request: with them it has {len(content) / 2**20:.0f} MiB, packed."
        kept = {name: value for name, value in kept.items() if not isinstance(value, list)}
        content = packed(json.dumps(kept) + "\n")
    return base64.b64encode(content).decode("ascii"), note


# --- the job ----------------------------------------------------------------------------------------------------------


def option(name: str) -> str:
    """An option by its name here and in bench.yml."""
    return f"{name} ({BENCH[name]})" if name in BENCH else name


def refused(params: Dict[str, Any]) -> str:
    """What is wrong with the options themselves; empty when nothing is."""
    dataset = params["dataset"]
    needed = [name for name in ("input_len", "output_len") if drawn(dataset) and params[name] is None]
    needed += ["output_len"] if dataset == "prompts" and params["output_len"] is None else []
    needed += ["dataset_path"] if dataset in ("prompts", "trace") and not params["dataset_path"] else []
    if needed:
        return f"dataset {dataset} needs {' and '.join(option(name) for name in needed)}."
    # Shorter answers are refused by the client's dataset `custom`.
    least = {"output_len": 4} if dataset == "prompts" else {}
    for name in ("concurrency", "prompts", "input_len", "output_len", "timeout"):
        if params[name] is not None and params[name] < least.get(name, 1):
            return f"{option(name)} is {params[name]}; expected {least.get(name, 1)} or more."
    if not 0 <= params["range_ratio"] <= 1:
        return f"{option('range_ratio')} is {params['range_ratio']}; expected 0 to 1, and 1 for fixed lengths."
    if not 0.05 <= params["telemetry_period_s"] <= 60:
        return f"telemetry_period_s is {params['telemetry_period_s']}; expected 0.05 to 60 seconds."
    if params["trace_slowdown"] <= 0:
        slowdown = f"{option('trace_slowdown')} is {params['trace_slowdown']}"
        return f"{slowdown}; expected more than 0, and 1 for the speed that was recorded."
    if any(index < 0 for index in params["gpus"]):
        return f"gpus is {params['gpus']}; expected indexes as nvidia-smi has them, 0 and up."
    return ""


def describe(params: Dict[str, Any]) -> str:
    """A load in a sentence's part."""
    lengths = "".join(
        f", {params[name]} {word}" for name, word in (("input_len", "in"), ("output_len", "out")) if params[name]
    )
    return f"{params['prompts']} requests, {params['concurrency']} at once{lengths}, seed {params['seed']}, of {params['url']}"


def digest(params: Dict[str, Any], content: bytes) -> str:
    """What this result is the result of: the load, and what its file holds."""
    decisive = {name: params[name] for name in DECISIVE}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode() + b"\0" + content).hexdigest()


def visible(environment: Dict[str, Any]) -> str:
    """The GPUs that the server was given, as nvidia-smi takes them: others say nothing of the load. Empty for all."""
    given = str(environment.get("CUDA_VISIBLE_DEVICES", "")).replace(" ", "")
    return given if re.fullmatch(r"(\d+|GPU-[0-9a-fA-F-]+)(,(\d+|GPU-[0-9a-fA-F-]+))*", given) else ""


def question(
    params: Dict[str, Any], command: List[str], work: str, result: str, data: Optional[Dataset]
) -> Dict[str, Any]:
    """What the program is asked (sglang_bencher), with what another run may want to know of it."""
    mean_output = (params["output_len"] or 0) * (1 + params["range_ratio"]) / 2 or None
    arrivals = params["request_rate"] or params["dataset"] == "trace"
    return {
        "what": describe(params),
        "began": now(),
        "trace_tokens": data.input_tokens if data else None,
        "command": command,
        "folder": work,
        "result": result,
        "timeout": params["timeout"],
        "url": params["url"].rstrip("/"),
        "ready_timeout": params["ready_timeout"],
        "flush": params["flush_cache"],
        "prompts": params["prompts"],
        "output_len": data.output_len if data else mean_output,
        "telemetry": params["telemetry"],
        "period_s": params["telemetry_period_s"],
        "gpus": ",".join(str(index) for index in params["gpus"]) or visible(params["environment"]),
        "concurrency": None if arrivals else params["concurrency"],
    }


class Work:
    """The folders of a job: the program's record, and the client's own."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.job, self.work = os.path.join(folder, "job"), os.path.join(folder, "work")
        self.result = os.path.join(self.work, "result.jsonl")

    def own(self) -> None:
        """Make it this user's alone. Others may write to the folder above it, so what is there is not trusted."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            about = os.lstat(self.folder)
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                whose = (
                    pwd.getpwuid(about.st_uid).pw_name
                    if about.st_uid in {p.pw_uid for p in pwd.getpwall()}
                    else about.st_uid
                )
                raise Refused(
                    f"folder {self.folder} is no folder of the present user ({whose}'s). Name another folder, or remove it."
                )
            os.chmod(self.folder, 0o700)
        except OSError as error:
            raise Refused(
                f"folder {self.folder} cannot be used: {error.strerror}. Name one that can be written."
            ) from None

    def asked(self) -> Dict[str, Any]:
        """What the job in it was asked."""
        try:
            with open(os.path.join(self.job, "question"), encoding="utf-8") as stream:
                found = json.load(stream)
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            return {}

    def read(self, name: str) -> str:
        try:
            with open(os.path.join(self.work, name), encoding="utf-8", errors="replace") as stream:
                return stream.read()
        except OSError:
            return ""

    def clear(self) -> None:
        shutil.rmtree(self.job, ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)


def locate_client(module: AnsibleModule) -> Client:
    python = module.params["python"]
    if not os.access(python, os.X_OK):
        raise Refused(
            f"{python} is missing or not executable. Expected the Python of a virtual environment that holds sglang."
        )
    code, out, err = module.run_command([python, "-c", LOCATE])
    if code != 0:
        raise Refused(f"{python} cannot run: {shorten((err or out).strip())}")
    place = json.loads(out)
    client = find_client(place["folders"], place["version"])
    if client is None:
        if not place["folders"]:
            raise Refused(f"{python} has no sglang. Expected the Python of the environment that serves.")
        names = " or ".join(path for _, path in CLIENTS)
        raise Refused(
            f"sglang {place['version']} in {place['folders'][0]} has no benchmark client. Expected its file {names}."
        )
    if module.params["dataset"] == "trace" and not client.replays:
        raise Refused(
            f"The client of sglang {client.version} ({client.module}) cannot replay a trace: it takes the first line for a made "
            "prompt, and fails. Name a Python with a newer release (0.5.23 can); it need not be the server's."
        )
    return client


def begin(module: AnsibleModule, work: Work, wanted: str, content: bytes) -> None:
    """Start the job: everything that can be refused is refused before it."""
    params = module.params
    client = locate_client(module)
    data, path = None, params["dataset_path"]
    if params["dataset"] in ("prompts", "trace"):
        data = read_dataset(content.decode("utf-8", "replace"), params)
    try:
        shutil.rmtree(work.work, ignore_errors=True)
        os.mkdir(work.work, 0o700)
        if params["dataset"] == "prompts" and data:
            path = os.path.join(work.work, "prompts.jsonl")
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(conversations(data.requests))
        program = os.path.join(work.work, "sglang_bencher.py")
        for part in (sglang_bencher, sglang_http, sglang_metrics, sglang_ports):
            with open(
                os.path.join(work.work, f"{part.__name__.rpartition('.')[2]}.py"), "w", encoding="utf-8"
            ) as stream:
                stream.write(inspect.getsource(part))
        command = command_line(client, params, work.result, path)
        asked = {
            **question(params, command, work.work, work.result, data),
            "client": {"module": client.module, "version": client.version},
            "file_sha256": hashlib.sha256(content).hexdigest() if params["dataset_path"] else "",
        }
        environment = client_environment(params, dict(os.environ))
        # -I: what PYTHONPATH names is for the client.
        argv = [sys.executable, "-I", "-B", program]
        sglang_job.begin(work.job, wanted, argv, json.dumps(asked), environment, work.work, {})
    except OSError as error:
        raise Refused(
            f"{error.filename or work.folder} cannot be written: {error.strerror}. Make room, or name another folder."
        ) from None


def finished_well(job: Dict[str, Any]) -> bool:
    """Whether a job that ended left a result that a later run may take."""
    return bool(job) and not job["running"] and (job["result"] or {}).get("code") == 0


# A result's key `finished` is Ansible's own, a boolean: it would be made one.
TIMES = {"started": "began", "finished": "ended"}


def ended(job: Dict[str, Any], work: Work, params: Dict[str, Any]) -> Dict[str, Any]:
    """What the module returns of a job that ended. Refused says why there is nothing."""
    told, asked = job["result"] or {}, work.asked()
    command, name = asked.get("command", []), (asked.get("client") or {}).get("module", "the client")
    output = work.read("output.txt")
    lines = output.splitlines()
    last = [shorten(line) for line in lines if line.strip()][-LAST_LINES:]

    def fail(text: str) -> Refused:
        gone = told.get("unhealthy")
        more = f" The server no longer answers: {params['url'].rstrip('/')}/health gives {gone}." if gone else ""
        times = {new: told[name] for name, new in TIMES.items() if name in told}
        files = output_file(output, params["api_key"])
        return Refused(f"{text}{more}", command=command, last_lines=last, files=files, **times)

    if "failed" in told:
        raise Refused(told["failed"], server_gone=told.get("server_gone", False))
    if "code" not in told:
        words = job["errors"].strip().splitlines()[-1:] or ["no words"]
        how = (
            f"exit status {job['rc']}"
            if job["rc"] is not None
            else "it was ended from outside, or the node was started anew"
        )
        raise fail(f"The measurement ended without a result ({how}), while {job['progress'] or 'it began'}: {words[0]}")
    if told["code"] is None:
        raise fail(
            f"{name} did not finish within {params['timeout']} s and was killed. Raise {option('timeout')}, or ask for less."
        )
    if told["code"] != 0:
        failure = last_error(lines)
        error = failure.error if failure else (last[-1] if last else "it said nothing")
        raise fail(f"{name} ended with status {told['code']}: {error}")
    try:
        with open(work.result, encoding="utf-8") as file:
            result = parse_result(file.read())
    except (OSError, ValueError) as error:
        raise fail(f"{name} ended with status 0 but left no result ({error}). Its last lines may say why.") from None
    return returned(result, told, asked, work, params)


def returned(
    result: Dict[str, Any], told: Dict[str, Any], asked: Dict[str, Any], work: Work, params: Dict[str, Any]
) -> Dict[str, Any]:
    """What the module returns of a client's line and of what was seen beside it."""
    load = {name: params[name] for name in LOAD}
    if asked.get("file_sha256"):
        load.update(file=file_name(params), file_sha256=asked["file_sha256"])
    figures = metrics(result, params["prompts"], told["cached"], vocabulary(params["model"]))
    found = [f"the prefix cache was not flushed: {told['flush']}"] if told["flush"] else []
    found += problems(result, figures, load)
    if told["unhealthy"]:
        found.append(
            f"the server no longer answers after the load: {params['url'].rstrip('/')}/health gives {told['unhealthy']}. Its log "
            "says why."
        )
    raw, note = raw_file(result)
    files = {"raw": raw}
    if told["telemetry"]:
        files["telemetry"] = base64.b64encode(packed(work.read("telemetry.csv"))).decode("ascii")
    if found:
        files.update(output_file(work.read("output.txt"), params["api_key"]))
    return {
        "changed": False,
        "load": load,
        "metrics": figures,
        "valid": not found,
        "problems": found,
        "notes": [*remarks(result, load, asked.get("trace_tokens"), figures), *([note] if note else [])],
        "client": asked.get("client") or {},
        "command": asked.get("command", []),
        "raw": raw_figures(result),
        **{new: told[name] for name, new in TIMES.items()},
        "telemetry": told["telemetry"],
        "files": files,
    }


def run(module: AnsibleModule) -> Dict[str, Any]:
    """One run of the module: begin the job or find it, wait a slice, and take what it came to."""
    params, work = module.params, Work(module.params["folder"])
    content = file_bytes(params)
    wanted = digest(params, content)
    work.own()
    job = sglang_job.look(work.job)
    mine = job.get("wanted") == wanted
    if params["attached"] and not mine:
        raise Refused(
            f"The measurement that this task began is gone ({work.job}): another run took its place, or stopped it."
        )
    if job.get("running") and not mine:
        asked = work.asked()
        raise Refused(
            f"Another load is measured here since {asked.get('began', 'a while ago')}: {asked.get('what', 'unknown')}. Two at once "
            "would measure each other. Wait for it, or end it (stop: true; with bench.yml -e sglang_bench_stop=true); it runs in "
            f"{work.folder}."
        )
    if not mine or not (params["attached"] or job["running"] or finished_well(job)):
        begin(module, work, wanted, content)
    job = sglang_job.wait(work.job, params["slice"])
    if not job:
        raise Refused(f"The measurement could not be begun: {work.job} holds nothing of it.")
    if job["running"]:
        return {"changed": False, "unfinished": True, "progress": job["progress"]}
    try:
        return ended(job, work, params)
    finally:
        work.clear()


def stopped(module: AnsibleModule) -> Dict[str, Any]:
    """End what runs in the folder."""
    work = Work(module.params["folder"])
    running = bool(sglang_job.look(work.job).get("running"))
    what = work.asked().get("what", "what ran") if running else ""
    if not module.check_mode:
        sglang_job.stop(work.job)
        work.clear()
    said = f"Ended: {what}." if running else f"Nothing is measured in {work.folder}."
    return {"changed": running, "stopped": running, "msg": said}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, required_if=[("stop", False, NEEDED)], supports_check_mode=True)
    params = module.params
    if params["stop"]:
        module.exit_json(**stopped(module))
    wrong = refused(params)
    if wrong:
        module.fail_json(msg=wrong)
    if module.check_mode:
        load = {name: params[name] for name in LOAD}
        module.exit_json(changed=False, skipped=True, load=load, msg="Check mode: not measuring.")
    try:
        module.exit_json(**run(module))
    except Refused as error:
        module.fail_json(msg=str(error), **error.facts)


if __name__ == "__main__":
    main()
