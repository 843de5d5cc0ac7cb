#!/usr/bin/python
"""Put one load on an SGLang server with the engine's own client, and return what it measured."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_bench
short_description: Measure an SGLang server with the engine's own bench_serving
description:
  - Runs one load with the benchmark client of an installed release, C(sglang.benchmark.serving) where the release has it,
    C(sglang.bench_serving) before, and returns its figures under names that do not depend on the version.
  - Runs on the node that serves, without a shell, in a folder of its own that it removes.
  - Says when a result does not mean what was asked (RV(valid), RV(problems)); the numbers are returned all the same.
  - Measures and changes nothing, apart from O(output_file) and the server's prefix cache.
options:
  python:
    description: The Python of a virtual environment that holds sglang. Its release may differ from the server's.
    type: path
    required: true
  url:
    description: Where the server answers, without a path, for example V(http://127.0.0.1:30000).
    type: str
    required: true
  model:
    description: Model folder or hub name whose tokenizer the client uses.
    type: str
    required: true
  served_model:
    description: The name that the server serves the model under, if it is not O(model).
    type: str
  concurrency:
    description: Requests in flight at most.
    type: int
    required: true
  prompts:
    description: Requests in all.
    type: int
    required: true
  input_len:
    description: Input tokens a request.
    type: int
    required: true
  output_len:
    description: Output tokens a request.
    type: int
    required: true
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
    description: The client's dataset. V(random-ids) needs no download.
    type: str
    default: random-ids
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
  output_file:
    description:
      - Where to keep the client's JSON line, per-request figures included, mode 0600.
      - The server's API key, which the client copies into it from C(/server_info), is blanked.
    type: path
  timeout:
    description: Seconds after which the client is killed.
    type: int
    default: 3600
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
notes:
  - Check mode measures nothing.
author: [sglang-rtxpro]
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
"""

RETURN = r"""
load:
  description: What was asked for, by parameter; request_rate is null for no limit.
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
    ttft_ms:
      description: Time to the first token.
      type: dict
    tpot_ms:
      description: Time a token after the first, by request.
      type: dict
    itl_ms:
      description: Time between two tokens.
      type: dict
    e2e_ms:
      description: Time from request to last token.
      type: dict
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
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_log import last_error, shorten

SPEC: Dict[str, Any] = {
    "python": {"type": "path", "required": True},
    "url": {"type": "str", "required": True},
    "model": {"type": "str", "required": True},
    "served_model": {"type": "str"},
    "concurrency": {"type": "int", "required": True},
    "prompts": {"type": "int", "required": True},
    "input_len": {"type": "int", "required": True},
    "output_len": {"type": "int", "required": True},
    "range_ratio": {"type": "float", "default": 1.0},
    "seed": {"type": "int", "default": 1},
    "dataset": {"type": "str", "default": "random-ids"},
    "request_rate": {"type": "float"},
    "warmup": {"type": "int", "default": 1},
    "flush_cache": {"type": "bool", "default": True},
    "output_file": {"type": "path"},
    "timeout": {"type": "int", "default": 3600},
    "environment": {"type": "dict", "default": {}},
    "api_key": {"type": "str", "no_log": True},
    "extra_args": {"type": "list", "elements": "str", "default": []},
}
LOAD = (
    "url", "model", "served_model", "concurrency", "prompts", "input_len", "output_len", "range_ratio", "seed", "dataset",
    "request_rate", "warmup", "flush_cache", "extra_args",
)  # fmt: skip

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

HTTP_TIMEOUT = 30  # /health may take the 20 s that the engine gives itself
LAST_LINES = 20
# The newest first: what comes later is kept by releases only as a deprecated way to the first.
CLIENTS = (("sglang.benchmark.serving", "benchmark/serving.py"), ("sglang.bench_serving", "bench_serving.py"))


# --- the client -------------------------------------------------------------------------------------------------------


class Client(NamedTuple):
    """The benchmark client of a release: what to give to `python -m`, its options, and the release."""

    module: str
    options: Set[str]
    version: Optional[str]


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
                return Client(module, set(re.findall(r'"(--[a-z0-9-]+)"', source)), version)
    return None


def command_line(client: Client, params: Dict[str, Any], result: str) -> List[str]:
    """The client's command line for a load; `result` is where it writes its JSON line."""
    command = [params["python"], "-m", client.module, "--backend", "sglang", "--base-url", params["url"].rstrip("/")]
    command += ["--model", params["model"], "--tokenizer", params["model"], "--dataset-name", params["dataset"]]
    if params["served_model"] and "--served-model-name" in client.options:
        command += ["--served-model-name", params["served_model"]]
    command += ["--num-prompts", str(params["prompts"]), "--max-concurrency", str(params["concurrency"])]
    command += ["--random-input-len", str(params["input_len"]), "--random-output-len", str(params["output_len"])]
    command += ["--random-range-ratio", str(params["range_ratio"]), "--seed", str(params["seed"])]
    command += ["--warmup-requests", str(params["warmup"])]
    if params["request_rate"]:
        command += ["--request-rate", str(params["request_rate"])]
    if params["flush_cache"]:
        command.append("--flush-cache")
    command += ["--disable-tqdm", "--output-details", "--output-file", result]
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


def metrics(result: Dict[str, Any], prompts: int) -> Dict[str, Any]:
    """The figures under this module's names."""
    figures: Dict[str, Any] = {name: number(result.get(theirs)) for name, theirs in FIGURES.items()}
    figures["completed"] = int(figures["completed"] or 0)
    figures["failed"] = max(0, prompts - figures["completed"])
    return {**figures, **latencies(result)}


def problems(result: Dict[str, Any], figures: Dict[str, Any], load: Dict[str, Any]) -> List[str]:
    """Why the measured load is not the one that was asked for."""
    found = []
    completed, failed = figures["completed"], figures["failed"]
    if failed:
        errors = [str(error) for error in result.get("errors") or [] if error]
        first = f"; the first error: {shorten(errors[0].strip().splitlines()[-1], 200)}" if errors else ""
        none = "no request was answered" if not completed else f"{failed} of {load['prompts']} requests failed"
        found.append(f"{none}{first}")
    requests = answered(result)
    silent = sum(request.ttft == 0 for request in requests)
    if silent:
        # Seen with 0.5.23: an error inside a stream of status 200 counts as an answer of all the tokens asked for.
        found.append(
            f"{silent} of {len(requests)} requests brought no text, and the client counts them as answered in full. Look in the "
            "server's log for refused requests (input longer than the context?); random weights can have the same effect."
        )
    if completed and load["range_ratio"] == 1.0 and load["dataset"].startswith("random"):
        asked, got = completed * load["output_len"], figures["output_tokens"] or 0
        if got < asked:
            found.append(
                f"{got:.0f} output tokens instead of {asked} ({completed} x {load['output_len']}): requests ended early. "
                "Expected that the end-of-text token is ignored; is --disable-ignore-eos set, or the context too short?"
            )
        asked, got = completed * load["input_len"], figures["input_tokens"] or 0
        if got != asked:
            found.append(f"{got:.0f} input tokens instead of {asked} ({completed} x {load['input_len']})")
    return found


def remarks(result: Dict[str, Any], load: Dict[str, Any]) -> List[str]:
    """What to know when reading the figures."""
    found = []
    if load["prompts"] < load["concurrency"]:
        found.append(f"{load['prompts']} requests never fill {load['concurrency']} places: the concurrency was lower.")
    counted = [length for length in result.get("input_lens") or [] if isinstance(length, int)]
    if (
        len(counted) == result.get("completed")  # a failed request has no count of the server's
        and load["dataset"].startswith("random")
        and sum(counted) != (number(result.get("total_input_tokens")) or 0)
    ):
        found.append(
            f"the server counted {sum(counted)} input tokens, the client {result.get('total_input_tokens')}: throughput "
            "figures use the client's. Random prompts do not always tokenize back to the length that was drawn; "
            "--tokenize-prompt in extra_args sends them as token ids."
        )
    return found


def without_keys(result: Dict[str, Any]) -> bool:
    """Blank the server's keys in server_info, in place; whether there were any."""
    info = result.get("server_info")
    found = [name for name in ("api_key", "admin_api_key") if isinstance(info, dict) and info.get(name)]
    for name in found:
        result["server_info"][name] = "***"
    return bool(found)


# --- the run ----------------------------------------------------------------------------------------------------------


def request(url: str, method: str, api_key: Optional[str]) -> Tuple[int, str]:
    """Status and reason of an HTTP request to the server; 0 and why when there was no answer."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, method=method, headers=headers), timeout=HTTP_TIMEOUT) as reply:
            return reply.status, ""
    except urllib.error.HTTPError as error:
        return error.code, str(error.reason)
    except Exception as error:  # also what http.client raises when it is no HTTP that answers
        return 0, str(getattr(error, "reason", None) or error)


def locate_client(module: AnsibleModule) -> Client:
    python = module.params["python"]
    if not os.access(python, os.X_OK):
        module.fail_json(
            msg=f"{python} is missing or not executable. Expected the Python of a virtual environment that holds sglang."
        )
    code, out, err = module.run_command([python, "-c", LOCATE])
    if code != 0:
        module.fail_json(msg=f"{python} cannot run: {shorten((err or out).strip())}")
    place = json.loads(out)
    client = find_client(place["folders"], place["version"])
    if client is None:
        if not place["folders"]:
            module.fail_json(msg=f"{python} has no sglang. Expected the Python of the environment that serves.")
        names = " or ".join(path for _, path in CLIENTS)
        module.fail_json(
            msg=f"sglang {place['version']} in {place['folders'][0]} has no benchmark client. Expected its file {names}."
        )
    assert client is not None
    return client


def run_client(
    command: List[str], environment: Dict[str, str], folder: str, timeout: int
) -> Tuple[Optional[int], List[str]]:
    """Run the client in `folder`; its exit status, None when it was killed at the timeout, and its last lines."""
    log = os.path.join(folder, "output.txt")
    with open(log, "wb") as output:
        client = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        code: Optional[int] = None
        try:
            code = client.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if code is None:
                # Its own session: the whole group goes, and nothing else.
                os.killpg(client.pid, signal.SIGKILL)
                client.wait()
    with open(log, encoding="utf-8", errors="replace") as output_text:
        return code, output_text.read().splitlines()


def keep(module: AnsibleModule, result: Dict[str, Any], text: str, target: str) -> None:
    """Keep the client's line where asked, readable by its owner only, replaced by rename."""
    folder = os.path.dirname(target) or "."
    if without_keys(result):
        text = json.dumps(result) + "\n"
    try:
        # Not atomic_move: it opens what it creates to everybody.
        handle, temporary = tempfile.mkstemp(prefix=".sglang-bench-", dir=folder)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, target)
    except OSError as error:
        module.fail_json(msg=f"output_file {target} cannot be written: {error}. Expected an existing folder {folder}.")


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    params = module.params
    for name in ("concurrency", "prompts", "input_len", "output_len", "timeout"):
        if params[name] < 1:
            module.fail_json(msg=f"{name} is {params[name]}; expected 1 or more.")
    if not 0 <= params["range_ratio"] <= 1:
        module.fail_json(msg=f"range_ratio is {params['range_ratio']}; expected 0 to 1, and 1 for fixed lengths.")
    load = {name: params[name] for name in LOAD}
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, load=load, msg="Check mode: not measuring.")

    client = locate_client(module)
    url = params["url"].rstrip("/")
    status, why = request(f"{url}/health", "GET", params["api_key"])
    if status != 200:
        said = f"HTTP {status} {why}".rstrip() if status else why
        module.fail_json(
            msg=f"{url}/health does not answer with 200 ({said}). Start the server, or correct url, first."
        )
    refused = []
    if params["flush_cache"]:
        # 0.5.9's client flushes without looking at the answer.
        status, why = request(f"{url}/flush_cache", "POST", params["api_key"])
        if status != 200:
            refused.append(
                f"the prefix cache was not flushed: {url}/flush_cache answers {status or 'nothing'} {why}".rstrip()
            )

    folder = tempfile.mkdtemp(prefix="sglang-bench-", dir=module.tmpdir)
    try:
        written = os.path.join(folder, "result.jsonl")
        command = command_line(client, params, written)
        code, lines = run_client(command, client_environment(params, dict(os.environ)), folder, params["timeout"])
        last = [shorten(line) for line in lines if line.strip()][-LAST_LINES:]
        if code is None:
            module.fail_json(
                msg=f"{client.module} did not finish within {params['timeout']} s and was killed. Raise timeout, or ask for less.",
                command=command,
                last_lines=last,
            )
        if code != 0:
            failure = last_error(lines)
            error = failure.error if failure else (last[-1] if last else "it said nothing")
            module.fail_json(msg=f"{client.module} ended with status {code}: {error}", command=command, last_lines=last)
        try:
            with open(written, encoding="utf-8") as file:
                text = file.read()
            result = parse_result(text)
        except (OSError, ValueError) as error:
            module.fail_json(
                msg=f"{client.module} ended with status 0 but left no result ({error}). Its last lines may say why.",
                command=command,
                last_lines=last,
            )
        figures = metrics(result, params["prompts"])
        found = refused + problems(result, figures, load)
        notes = remarks(result, load)
        if params["output_file"]:
            keep(module, result, text, params["output_file"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    module.exit_json(
        changed=False,
        load=load,
        metrics=figures,
        valid=not found,
        problems=found,
        notes=notes,
        client={"module": client.module, "version": client.version},
        command=command,
        raw=raw_figures(result),
    )


if __name__ == "__main__":
    main()
