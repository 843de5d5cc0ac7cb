# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Measurements that were kept, and what two or more of them say side by side.

A run is `run.json` of bench.yml (schemas/run.schema.json), a baseline what somebody published (schemas/baseline.schema.json). Both
are read into the same form. Whether figures can be compared is decided a load at a time, and the reason is a sentence. For the
controller; Python 3.11.
"""

from __future__ import annotations

import collections
import difflib
import functools
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.common.yaml import yaml_load

from . import sglang_results

ROOT = Path(__file__).resolve().parents[1]
# More of the input than this from the prefix cache, and a figure is of the cache, not of the model.
WARM = 0.01
NOT_STATED = "not stated"
NO_OPTION = "no such option"
ABSENT = ("has this load", "has no such load")

# What makes a load, beside the seed, which is another one each time.
LOAD = {
    "concurrency": "requests at once",
    "input_len": "input tokens a request",
    "output_len": "output tokens a request",
    "range_ratio": "range ratio of lengths",
    "dataset": "dataset",
    "file_sha256": "file of prompts",
    "request_rate": "requests a second",
    "trace_slowdown": "slowdown of the trace",
    "prompts": "requests in all",
}
# Of a trace its first so many requests are sent, at its own times: both say which piece of it. Of other loads they say nothing.
OF_TRACES = ("trace_slowdown", "prompts")
# Name, unit, which is better, where it stands in a rung.
FIGURES: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("output throughput", "tok/s", "higher", ("metrics", "output_throughput_tokens_per_s")),
    ("total throughput", "tok/s", "higher", ("metrics", "total_throughput_tokens_per_s")),
    ("input throughput", "tok/s", "higher", ("metrics", "input_throughput_tokens_per_s")),
    ("throughput, kind not stated", "tok/s", "higher", ("metrics", "unstated_throughput_tokens_per_s")),
    ("request throughput", "requests/s", "higher", ("metrics", "request_throughput_per_s")),
    ("TTFT median", "ms", "lower", ("metrics", "ttft_ms", "median")),
    ("TTFT mean", "ms", "lower", ("metrics", "ttft_ms", "mean")),
    ("TTFT p99", "ms", "lower", ("metrics", "ttft_ms", "p99")),
    ("TPOT median", "ms", "lower", ("metrics", "tpot_ms", "median")),
    ("TPOT mean", "ms", "lower", ("metrics", "tpot_ms", "mean")),
    ("TPOT p99", "ms", "lower", ("metrics", "tpot_ms", "p99")),
    ("ITL p99", "ms", "lower", ("metrics", "itl_ms", "p99")),
    ("power, mean", "W", "lower", ("telemetry", "power_w", "mean")),
    ("output tokens per joule", "tok/J", "higher", ("telemetry", "output_tokens_per_j")),
    ("accepted tokens a step", "tokens", "higher", ("metrics", "accept_length")),
]
UNSTATED = "throughput, kind not stated"
# Means stand beside medians only where a run states nothing else.
MEANS = {"TTFT mean": "TTFT median", "TPOT mean": "TPOT median"}
SPEED = ("tok/s", "requests/s", "ms")
GROUPS = ("load", "model", "versions", "patches", "tuning", "arguments", "environment", "host", "measurement")
SET_GROUPS = ("load", "model", "patches", "tuning", "environment")

# Arguments that name a host, a start or a file, or are told elsewhere: their difference is none of the deployment.
NOT_OF_NOTE = {
    "host", "port", "nccl_port", "dist_init_addr", "node_rank", "random_seed", "base_gpu_id", "disaggregation_bootstrap_port",
    "model_path", "tokenizer_path", "served_model_name", "quantization", "file_storage_path", "download_dir", "config",
    "api_key", "admin_api_key", "internal_states", "status", "version", "startup_time", "launch_command", "frontend",
    "max_req_input_len", "max_total_num_tokens",
}  # fmt: skip
# Variables that say where things lie on a host.
PLACES = ("_DIR", "_HOME", "_PATH", "_BASE", "_FILE")
PLACE_NAMES = ("PATH", "HOME", "SGLANG_DEPLOYMENT")


class RunError(ValueError):
    """Says which run cannot be used, what was expected and what to do."""


# --- reading ----------------------------------------------------------------------------------------------------------


def read(path: str | Path) -> dict[str, Any]:
    """A run.json, its folder, or a baseline's file, in the form of schema 2 with `source` (kind, name, title, path) beside it.

    Raises RunError.
    """
    file = Path(path).expanduser()
    if file.suffix in (".yml", ".yaml"):
        return baseline(file)
    file = file / "run.json" if file.is_dir() else file
    text = _text(file, "a run.json or its folder, as bench.yml leaves it below results/")
    try:
        run = json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        raise RunError(
            f"{file} is no JSON: {error}. It was cut off or edited: take another run, or measure again."
        ) from None
    version = run.get("schema") if isinstance(run, dict) else None
    if type(version) is int and version > sglang_results.SCHEMA:
        raise RunError(
            f"{file} is of schema {version}, and this release reads up to {sglang_results.SCHEMA}. Use the release that wrote it."
        )
    if type(version) is not int or version < 1 or not isinstance(run.get("rungs"), list):
        raise RunError(
            f"{file} is JSON, but no run: expected `schema` (1 or {sglang_results.SCHEMA}) and `rungs`, as bench.yml writes them."
        )
    try:
        run = upgraded(run) if version == 1 else run
        title = f"{run['profile'] or 'server'} on {run['host']}"
        return {
            **run,
            "source": {"kind": "run", "name": run["label"] or run["profile"], "title": title, "path": str(file)},
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{file} is of schema {version}, but not whole: {error!r} is missing or of another kind."
        ) from None


def baseline(path: str | Path) -> dict[str, Any]:
    """A published figure's file (baselines/README.md) as a run. What it does not state is null. Raises RunError."""
    import yaml

    file = Path(path)
    try:
        told = yaml_load(_text(file, "a file of baselines/"))
    except yaml.YAMLError as error:
        raise RunError(f"{file} is no YAML: {error}") from None
    try:
        rungs = [_published(index, rung, told) for index, rung in enumerate(told["rungs"])]
        hardware = told["hardware"]
        return {
            "schema": sglang_results.SCHEMA,
            "id": told["name"],
            "host": "",
            "profile": told["name"],
            "label": "",
            "started": str(told["date"]),
            "finished": "",
            "seed": 0,
            "repeats": 1,
            "target": {
                "url": "",
                "python": "",
                "model_path": told["model"],
                "served_model": told["model"],
                "deployed": False,
            },
            "server": {
                "sglang": str(told["versions"].get("sglang") or ""),
                "arguments": _fields({**told["arguments"], **(told.get("resolved") or {})}),
                "given": told["arguments"],
                "environment": told["environment"],
            },
            "deployment": {
                "versions": told["versions"],
                "engine": told["engine"],
                "patches": [{"name": name, "status": "applied"} for name in told["patches"]],
                "quantization": told["quantization"],
            },
            "node": {
                "gpus": [{"name": hardware["gpu"]}] * (hardware["gpus"] or 0) if hardware["gpu"] else [],
                "driver": {"version": str(told["versions"].get("driver") or "")},
            },
            "tuning": {},
            "answers": {},
            "rungs": rungs,
            "valid": True,
            "problems": [],
            "source": {"kind": "baseline", "name": told["name"], "title": told["title"], "path": str(file)},
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{file} is no baseline: {error!r} is missing or of another kind (baselines/README.md)."
        ) from None


def upgraded(old: dict[str, Any]) -> dict[str, Any]:
    """A run of schema 1 as one of schema 2. What schema 1 did not keep is empty, null or unknown."""
    deployment = old.get("deployment") or {}
    target = old.get("target") or {}
    stamp = old["started"]
    started = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[9:11]}:{stamp[11:13]}:{stamp[13:15]}Z"
    node = deployment.get("node") or {}
    rungs = [_rung(index, rung) for index, rung in enumerate(old["rungs"])]
    return {
        "schema": sglang_results.SCHEMA,
        "id": f"{stamp}-{old['host']}",
        "host": old["host"],
        "profile": target.get("profile") or "",
        "label": "",
        "started": started,
        "finished": "",
        "seed": rungs[0]["load"]["seed"] if rungs else 0,
        "repeats": 1,
        "target": {
            "url": target.get("url") or "",
            "python": target.get("python") or "",
            "model_path": target.get("model_path") or "",
            "served_model": deployment.get("model") or target.get("model_path") or "",
            "deployed": bool(deployment),
        },
        "server": {
            "sglang": deployment.get("sglang") or "",
            "arguments": deployment.get("resolved") or {},
            "given": words_given(deployment.get("argv") or []),
            "environment": target.get("environment") or {},
        },
        "deployment": deployment,
        "node": {
            "gpus": [{"name": name} for name in node.get("gpus") or []],
            "driver": {"version": node.get("driver") or ""},
            "kernel": node.get("kernel") or "",
        },
        "tuning": old.get("tuning") or {},
        "answers": {},
        "rungs": rungs,
        "valid": all(rung["valid"] for rung in rungs),
        "problems": [],
    }


def words_given(argv: list[str]) -> dict[str, Any]:
    """Options of a command line, name to value: true for a bare one, a list for several words."""
    given: dict[str, Any] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            given[name] = value or True
        elif name:
            before = given[name]
            given[name] = word if before is True else [*(before if isinstance(before, list) else [before]), word]
    return given


def _text(file: Path, expected: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"There is no {file}. Expected {expected}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file} cannot be read: {error}. Expected {expected}.") from None


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")


def _rung(index: int, old: dict[str, Any]) -> dict[str, Any]:
    """A rung of schema 1: the module sglang_bench's result, cut down."""
    load, figures, command = old["load"], old.get("metrics"), old.get("command") or []
    after = command.index("-m") + 1 if "-m" in command else len(command)
    kept = ("concurrency", "prompts", "input_len", "output_len", "range_ratio", "dataset", "request_rate", "seed")
    return {
        "index": index,
        "repeat": 0,
        "load": {key: load[key] for key in kept},
        "status": "measured" if figures else "failed",
        "valid": bool(old.get("valid")),
        "problems": old.get("problems") or [],
        "notes": [],
        "findings": [],
        "started": "",
        "finished": "",
        "metrics": figures or None,
        "telemetry": None,
        "client": {"module": "".join(command[after : after + 1]), "version": ""},
        "command": command,
        "files": {},
    }


def _published(index: int, rung: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """A rung of a baseline. The key under `throughput` is the kind of the figure."""
    kinds = {f"{kind}_throughput_tokens_per_s": value for kind, value in rung["throughput"].items()}
    kinds["unstated_throughput_tokens_per_s"] = kinds.pop("not_stated_throughput_tokens_per_s", None)
    ratio = rung.get("cached_token_ratio")
    others = {
        key: rung.get(key) for key in ("ttft_ms", "tpot_ms", "itl_ms", "accept_length", "request_throughput_per_s")
    }
    return {
        "index": index,
        "repeat": 0,
        "load": {**dict.fromkeys(LOAD), "prompts": None, "seed": None, **rung["load"]},
        "status": "measured",
        "valid": True,
        "problems": [],
        "notes": [rung["note"]] if rung.get("note") else [],
        "measured": rung.get("measured", told["measured"]),
        "metrics": {**kinds, **others, "cached_token_ratio": ratio},
        "telemetry": {"power_w": {"mean": rung["power_w"]}} if rung.get("power_w") else None,
        "client": {"module": told.get("client") or "", "version": ""},
        "command": [],
        "files": {},
    }


def _fields(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in arguments.items()}


# --- finding ----------------------------------------------------------------------------------------------------------


def find(
    name: str,
    results: str | Path,
    baselines: str | Path = ROOT / "baselines",
    skip: Path | None = None,
    host: str = "",
) -> Path:
    """Where a run or baseline of this name lies.

    A name is a path; `latest`, `PROFILE/latest` or either with `~1` (the one before) and so on; the id of a run's folder;
    `baseline:NAME`, or NAME alone. The run in the folder `skip` is never found: it is the one that is held against another.
    `latest` counts the runs of `host`; those of other hosts only where it has none. Raises RunError with the nearest names.
    """
    text = str(name).strip()
    path = Path(text).expanduser()
    own = skip.expanduser().resolve() if skip else None
    if path.is_file() or (path / "run.json").is_file():
        if own and own in (path.resolve(), path.resolve().parent):
            raise RunError(
                f"'{text}' is the run that was just made, and says nothing against itself. Name another one."
            )
        return path
    every = (file.parent for file in Path(results).glob("*/*/run.json"))
    kept = sorted((at for at in every if at.resolve() != own), key=lambda at: at.name, reverse=True)
    published = {file.stem: file for file in Path(baselines).glob("*.yml")}
    plain = text.removeprefix("baseline:")
    if plain in published and not (text == plain and any(at.name == plain for at in kept)):
        return published[plain]
    profile, _, last = text.rpartition("/")
    word, _, back = last.partition("~")
    mine = [at for at in kept if profile in ("", at.parent.name)]
    if word == "latest" and (back or "0").isdecimal():
        number = int(back or 0)
        # A run's folder is named TIME-HOST.
        of_host = [at for at in mine if host and at.name.partition("-")[2] == host]
        mine = of_host or mine
        if number < len(mine):
            return mine[number]
        where = (f" of {profile}" if profile else "") + (f" on {host}" if of_host else "")
        remedy = _nearest(profile, kept, published) if profile and not mine else " bench.yml makes one."
        other = " other" if own else ""
        raise RunError(f"'{text}': {results} has {len(mine)}{other} run{'s' * (len(mine) != 1)}{where}.{remedy}")
    found = [at for at in mine if at.name == last]
    if found:
        return found[0]
    raise RunError(
        f"'{text}' is no run: no such path, no folder of {results}, no file of {baselines}."
        f"{_nearest(text, kept, published)} Write PROFILE/latest, a folder's name, a path, or baseline:NAME."
    )


def _nearest(text: str, kept: list[Path], published: dict[str, Path]) -> str:
    """A sentence with what is most like a name; what there is at all when nothing is."""
    profiles = {f"{at.parent.name}/latest" for at in kept}
    known = [*profiles, *(at.name for at in kept), *published]
    short = {name.removesuffix("/latest"): name for name in profiles}
    near = difflib.get_close_matches(text.removeprefix("baseline:"), [*known, *short], n=3, cutoff=0.5)
    near = list(dict.fromkeys(short.get(name, name) for name in near)) or sorted(profiles)[:5]
    return f" Did you mean {' or '.join(near)}?" if near else ""


# --- what differs -----------------------------------------------------------------------------------------------------


@functools.cache
def options_of(release: str) -> dict[str, Any]:
    """Every option of a release by its field, with its default, from the stacks; empty for a release that no stack has."""
    for stack in sorted((ROOT / "stacks").glob("*/stack.yml")):
        file = stack.with_name("options.json")
        if str(yaml_load(stack.read_text(encoding="utf-8")).get("sglang")) == release and file.is_file():
            return {entry["dest"]: entry for entry in json.loads(file.read_text(encoding="utf-8"))}
    return {}


@functools.cache
def newest_names() -> dict[str, str]:
    """Fields that were renamed, to their newest name. An option that takes other values than before is another one."""
    entries = yaml_load((ROOT / "stacks/renames.yml").read_text(encoding="utf-8"))
    plain = [entry["names"] for entry in entries if not entry.get("note")]
    return {old.replace("-", "_"): names[0].replace("-", "_") for names in plain for old in names[1:]}


class Arguments(NamedTuple):
    """Of one run, by the newest field name: what was in force and what was set."""

    effective: dict[str, Any]
    given: set[str]
    missing: str  # what to say of a field that is not there
    departs: set[str]  # where nothing is known of what was set: what is not the release's default


def arguments(run: dict[str, Any]) -> Arguments:
    """A run's server arguments. A manifest keeps what differs from the release's defaults, a server tells everything."""
    server, deployment = run["server"], run["deployment"]
    options = options_of(str(server.get("sglang") or ""))
    names = {name.lstrip("-").replace("-", "_"): entry["dest"] for entry in options.values() for name in entry["names"]}

    def field(name: str) -> str:
        plain = name.replace("-", "_")
        # A parser takes the beginning of a name that has one end only, as --tp.
        longer = {dest for known, dest in names.items() if known.startswith(plain)}
        plain = names.get(plain) or (longer.pop() if len(longer) == 1 else plain)
        return newest_names().get(plain, plain)

    # Records of before kept the command line and not what it was made of.
    words = server.get("given") or words_given(deployment.get("argv") or [])
    given = {field(name): value for name, value in words.items()}
    resolved = {**(deployment.get("resolved") or {}), **(server.get("arguments") or {})}
    known = {name: value for name, value in resolved.items() if not options or name in options or name in _FIELDS}
    defaults = {name: entry.get("default") for name, entry in options.items()}
    published = _kind(run) == "baseline"
    effective = {field(name): value for name, value in ({} if published else defaults).items()}
    effective |= given | {field(name): value for name, value in known.items()}
    kept = {name: value for name, value in effective.items() if name not in NOT_OF_NOTE and not name.startswith("_")}
    missing = NOT_STATED if published else NO_OPTION if options else "default"
    departs = {
        field(name)
        for name, value in known.items()
        if not given and defaults.get(name) is not None and show(value) != show(defaults[name])
    }
    return Arguments(kept, set(given) - NOT_OF_NOTE, missing, departs)


# Fields that a release calls otherwise than its parser does.
_FIELDS = ("tp_size", "pp_size", "dp_size", "ep_size", "attn_cp_size", "moe_dp_size")


def show(value: Any) -> str:
    """A value for people: the same whether it was a word of a command line or a server's answer."""
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str) and value.replace(".", "", 1).isdecimal():
        number = float(value)
        return str(int(number)) if number.is_integer() else f"{number:g}"
    if isinstance(value, (list, tuple)):
        short = len(value) <= 24
        return " ".join(show(item) for item in value) if short else f"{len(value)} values, {value[0]} to {value[-1]}"
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return str(value)


def differing_arguments(runs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of arguments that differ, and what differs by the releases' defaults alone."""
    of = [arguments(run) for run in runs]
    releases = {run["server"].get("sglang") for run in runs if _kind(run) == "run"}
    rows: list[dict[str, Any]] = []
    changed: list[dict[str, Any]] = []
    only = 0
    for name in sorted({name for one in of for name in one.effective}):
        values = [show(one.effective[name]) if name in one.effective else one.missing for one in of]
        if len(set(values)) == 1:
            continue
        is_set = any(name in one.given for one in of)
        row = {"group": "arguments", "name": name.replace("_", "-"), "values": values, "set": is_set}
        stated = {value for value in values if value != NOT_STATED}
        if is_set:
            rows.append(row)
        elif NO_OPTION in values:
            only += 1
        elif len(stated) > 1:
            by_release = len(releases) > 1 and not any(name in one.departs for one in of)
            (changed if by_release else rows).append(row)
    return rows, {"only_in_some": only, "changed": changed}


def facts(run: dict[str, Any]) -> dict[tuple[str, str], str]:
    """What else is known of a run, by group and name; what is not known is not there."""
    server, deployment, node, target = run["server"], run["deployment"], run["node"], run["target"]
    versions = deployment.get("versions") or {}
    asked = {"sglang": server.get("sglang"), "flashinfer": deployment.get("flashinfer"), **versions}
    asked["driver"] = (node.get("driver") or {}).get("version")
    asked["release"] = Path(deployment.get("release") or "").name
    asked["engine"] = deployment.get("engine") or "sglang"
    asked["client"] = _join(rung["client"].get("version") for rung in run["rungs"])
    found: dict[tuple[str, str], Any] = {("versions", name): value for name, value in asked.items()}
    model = target.get("model_path") or target.get("served_model") or ""
    found["model", "model"] = Path(model).name
    given = {**(deployment.get("resolved") or {}), **(server.get("arguments") or {})}
    found["model", "quantization"] = deployment.get("quantization") or given.get("quantization")
    tuning = deployment.get("tuning") or {}
    found["tuning", "verdict"] = (run.get("tuning") or {}).get("verdict")
    found["tuning", "mode"] = tuning.get("mode")
    found["tuning", "artefacts"] = _join(tuning.get("artefacts") or [])
    for name, value in (server.get("environment") or deployment.get("environment") or {}).items():
        if not name.endswith(PLACES) and name not in PLACE_NAMES:
            found["environment", name] = value
    memory = (node.get("memory_mib") or {}).get("total")
    found["host", "node"] = run["host"]
    found["host", "host name"] = node.get("hostname")  # two inventories may call two machines the same
    found["host", "GPUs"] = gpus(node)
    found["host", "GPU power limit"] = _join(
        f"{gpu['power_limit_w']:.0f} W" for gpu in node.get("gpus") or [] if gpu.get("power_limit_w")
    )
    found["host", "CPUs"] = node.get("cpus")
    found["host", "memory"] = f"{memory / 1024:.0f} GiB" if memory else None
    found["host", "kernel"] = node.get("kernel")
    loads = [rung["load"] for rung in run["rungs"]]
    for what, values in zip(LOAD.values(), zip(*map(load_key, loads), strict=True), strict=False):
        found["load", what] = ", ".join(show(value) for value in sorted(set(values) - {None})) or None
    if _kind(run) == "run":
        flushed = {"--flush-cache" in rung["command"] for rung in run["rungs"] if rung["command"]}
        found["measurement", "prefix cache emptied before a load"] = (
            " and ".join("yes" if one else "no" for one in sorted(flushed)) or None
        )
    found["measurement", "repeats"] = run["repeats"]
    found["measurement", "requests in all"] = ", ".join(
        show(n) for n in dict.fromkeys(x.get("prompts") for x in loads if x.get("dataset") != "trace") if n
    )
    found["measurement", "measured"] = _join(measured(rung) for rung in run["rungs"])
    return {key: show(value) for key, value in found.items() if value not in (None, "", [], {})}


def gpus(node: dict[str, Any]) -> str:
    """Such as "8 × NVIDIA H200"; empty where none is known."""
    counted = collections.Counter(gpu["name"] for gpu in node.get("gpus") or [] if gpu.get("name"))
    return ", ".join(f"{number} × {name}" for name, number in counted.items())


def measured(rung: dict[str, Any]) -> str:
    """How a figure came about; bench.yml's client counts from the first request to the last answer."""
    how = rung.get("measured", "client")
    return str(how) if how else ""


def differences(runs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What differs between runs, what was set first, and what differs by defaults alone."""
    rows, defaults = differing_arguments(runs)
    known = [facts(run) for run in runs]
    for key in sorted({key for one in known for key in one}):
        group, name = key
        # A variable that is not set is known not to be; of most else, silence says nothing.
        absent = "not set" if group == "environment" else NOT_STATED
        values = [
            one.get(key, NOT_STATED if _kind(run) == "baseline" else absent)
            for one, run in zip(known, runs, strict=True)
        ]
        if len({value for value in values if value != NOT_STATED}) > 1:
            rows.append({"group": group, "name": name, "values": values, "set": group in SET_GROUPS})
    patches = [
        {one["name"]: one.get("status", "applied") for one in run["deployment"].get("patches") or []} for run in runs
    ]
    for name in sorted({name for one in patches for name in one}):
        values = [one.get(name, "none") for one in patches]
        if len(set(values)) > 1:
            rows.append({"group": "patches", "name": name, "values": values, "set": True})
    rows.sort(key=lambda row: (not row["set"], GROUPS.index(row["group"]), row["name"]))
    return rows, defaults


def _join(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values if value}))


def _kind(run: dict[str, Any]) -> str:
    return str((run.get("source") or {}).get("kind", "run"))


# --- figures ----------------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """All that a run measured at one load."""

    run: dict[str, Any]
    name: str
    load: dict[str, Any]
    rungs: list[dict[str, Any]]

    @property
    def good(self) -> list[dict[str, Any]]:
        return [rung for rung in self.rungs if rung["status"] == "measured" and rung["valid"] and rung["metrics"]]


def load_key(load: dict[str, Any]) -> tuple[Any, ...]:
    """What two loads share when they are the same one, in the order of LOAD. An empty text says nothing."""
    trace = load.get("dataset") == "trace"
    said = (
        {**load, "trace_slowdown": load.get("trace_slowdown", 1.0)} if trace else {**load, **dict.fromkeys(OF_TRACES)}
    )
    return tuple(None if said.get(name) == "" else said.get(name) for name in LOAD)


def cells(run: dict[str, Any], name: str) -> list[Cell]:
    """A run's loads, each with its repeats, in the ladder's order. The same load at two places of it are two."""
    found: dict[tuple[Any, ...], Cell] = {}
    for rung in run["rungs"]:
        cell = found.setdefault((rung["index"], load_key(rung["load"])), Cell(run, name, rung["load"], []))
        cell.rungs.append(rung)
    return list(found.values())


def rows(runs: list[dict[str, Any]], names: list[str]) -> list[list[Cell | None]]:
    """One row a load, one place a run: the same load where there is one, else what has as many requests at once.

    Where a run has a load more than once, those with as many requests in all are laid side by side, the rest in order.
    """
    first, *rest = [cells(run, name) for run, name in zip(runs, names, strict=True)]
    table: list[list[Cell | None]] = [[cell, *[None] * len(rest)] for cell in first]
    for place, left in enumerate(rest, 1):
        for alike in (_same_and_as_long, _same):
            for row in table:
                _take(row, place, left, alike)
        for row in table:
            if row[0] is not None:
                _take(row, place, left, _as_many_at_once)
        table += [[*[None] * place, cell, *[None] * (len(rest) - place)] for cell in left]
    return table


def _same(one: Cell, other: Cell) -> int:
    return load_key(one.load) == load_key(other.load)


def _same_and_as_long(one: Cell, other: Cell) -> int:
    return _same(one, other) and one.load.get("prompts") == other.load.get("prompts")


def _as_many_at_once(one: Cell, other: Cell) -> int:
    """How much else two loads have in common that have as many requests at once; 0 for others."""
    a, b = load_key(one.load), load_key(other.load)
    return sum(x == y for x, y in zip(a, b, strict=True)) if a[0] is not None and a[0] == b[0] else 0


def _take(row: list[Cell | None], place: int, left: list[Cell], alike: Callable[[Cell, Cell], int]) -> None:
    """Move what is most like a row's load, the first of several, from `left` to its place there, if any is."""
    lead = next(cell for cell in row if cell)
    if row[place] is None and left:
        best = max(range(len(left)), key=lambda at: alike(lead, left[at]))
        if alike(lead, left[best]):
            row[place] = left.pop(best)


def why_not(one: Cell, other: Cell) -> list[str]:
    """Why two cells cannot be compared, in plain words; empty when they can."""
    return [
        *_other_load(one, other),
        *(reason for cell in (one, other) for reason in _unusable(cell)),
        *_other_cache(one, other),
        *_other_kind(one, other),
    ]


def _other_load(one: Cell, other: Cell) -> list[str]:
    # A named set of prompts fixes what it does not say of itself, when it is the same on both sides.
    same_prompts = one.load.get("dataset") and one.load.get("dataset") == other.load.get("dataset")
    # No file and no rate are a load of their own, not something left unsaid.
    free = {"file_sha256", "request_rate"}
    traces = one.load.get("dataset") == other.load.get("dataset") == "trace"
    numbers, unsaid, found = [], collections.defaultdict(list), []
    for name, a, b in zip(LOAD, load_key(one.load), load_key(other.load), strict=True):
        what = LOAD[name]
        if name in OF_TRACES and not traces:
            continue
        if a == b and (a is not None or (same_prompts and name not in OF_TRACES) or name in free):
            continue
        if name not in free and None in (a, b):
            unsaid[" and ".join(cell.name for cell, value in ((one, a), (other, b)) if value is None)].append(what)
        elif name == "range_ratio":
            kinds = ["fixed" if value == 1 else f"drawn (range ratio {value:g})" for value in (a, b)]
            found.append(f"other lengths: {kinds[0]} in {one.name}, {kinds[1]} in {other.name}")
        elif name in ("dataset", "file_sha256"):
            found.append(f"other prompts: {_brief(a)} in {one.name}, {_brief(b)} in {other.name}")
        elif name == "request_rate":
            rates = ["no limit" if value is None else f"{value:g}" for value in (a, b)]
            numbers.append(f"{what} {rates[0]} in {one.name}, {rates[1]} in {other.name}")
        else:
            numbers.append(f"{what} {show(a)} in {one.name}, {show(b)} in {other.name}")
    return [
        *([f"other load: {'; '.join(numbers)}"] if numbers else []),
        *found,
        *(f"not stated for {who}: {', '.join(what)}" for who, what in unsaid.items()),
    ]


def _brief(value: Any) -> str:
    text = show(value)
    return f"{text[:12]}…" if len(text) == 64 else text


def _unusable(cell: Cell) -> list[str]:
    """What speaks against one side alone."""
    found = []
    if not cell.good:
        last = cell.rungs[-1]
        why = f": {last['problems'][0]}" if last["problems"] else ""
        states = {"failed": "failed", "not_run": "was not run", "measured": "is not valid"}
        found.append(f"this load {states[last['status']]} in {cell.name}{why}")
    prompts, places = cell.load.get("prompts"), cell.load.get("concurrency")
    if prompts and places and prompts < places and not pace(cell.load):
        found.append(f"{prompts} requests never fill {places} places in {cell.name}")
    for when in ("before", "after"):
        gate = (cell.run.get("answers") or {}).get(when) or {}
        if gate.get("passed") is False:
            found.append(
                f"the answers of {cell.name} were wrong {when} the loads: {gate.get('summary', '')}".rstrip(": ")
            )
    return found


def warm_share(rung: dict[str, Any]) -> float | None:
    """Of a load's input tokens, how many the prefix cache had beyond what chance explains; None where the server does not say.

    Where nobody worked that out, of a baseline or an older run, all that the cache had.
    """
    share = dig(rung.get("metrics"), "warm_token_ratio")
    return dig(rung.get("metrics"), "cached_token_ratio") if share is None else share


def _other_cache(one: Cell, other: Cell) -> list[str]:
    found = [[share for share in map(warm_share, cell.rungs) if share is not None] for cell in (one, other)]
    shares = [statistics.median(values) if values else None for values in found]
    if all(share is None or share <= WARM for share in shares):
        return []
    a, b = shares
    if a is not None and b is not None and abs(a - b) <= WARM:
        return []
    said = [
        f"{100 * share:.0f} % of {cell.name}'s" if share is not None else f"an unknown share of {cell.name}'s"
        for cell, share in ((one, a), (other, b))
    ]
    return [f"warm against cold cache: {said[0]} input tokens came from the prefix cache, {said[1]}"]


def _other_kind(one: Cell, other: Cell) -> list[str]:
    if not one.good or not other.good:
        return []
    found = []
    ways = [measured(cell.good[0]) for cell in (one, other)]
    if all(ways) and ways[0] != ways[1]:
        said = {
            "client": "from the first request to the last answer",
            "decode": "while all places were generating, without what comes before and after",
        }
        told = [f"{cell.name} {said.get(way, way)}" for cell, way in zip((one, other), ways, strict=True)]
        found.append(f"measured otherwise: {told[0]}, {told[1]}")
    silent = [cell.name for cell, way in zip((one, other), ways, strict=True) if not way]
    if silent:
        found.append(f"how it was measured is not stated for {' and '.join(silent)}")
    kinds = [
        {name for name, _, _, path in FIGURES if name.endswith("throughput") and path[1].endswith("tokens_per_s")
         and _median(cell, path) is not None} for cell in (one, other)
    ]  # fmt: skip
    if not kinds[0] & kinds[1]:
        told = [
            f"{' and '.join(sorted(kind))} in {cell.name}"
            if kind
            else f"throughput of a kind not stated in {cell.name}"
            for cell, kind in zip((one, other), kinds, strict=True)
        ]
        found.append(f"no throughput of one kind: {told[0]}, {told[1]}")
    return found


def samples(cell: Cell | None, path: tuple[str, ...]) -> list[float]:
    """A figure's values, one a repeat."""
    found = (dig(rung, *path) for rung in (cell.good if cell else []))
    return [value for value in found if value is not None]


def dig(value: Any, *path: str) -> float | None:
    """The finite number at a path of keys, else None."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if usable else None


def _median(cell: Cell | None, path: tuple[str, ...]) -> float | None:
    values = samples(cell, path)
    return statistics.median(values) if values else None


def verdict(reference: list[float], values: list[float], better: str, unit: str = "tok/s") -> str:
    """What a figure's repeats, a value each, allow to say of `values` against `reference`; `better` is "higher" or "lower".

    Spreads that overlap say nothing, whatever the medians are. A figure whose unit is no speed is higher or lower, not faster.
    """
    few = min(len(reference), len(values))
    if few == 0:
        return "not measured"
    if few == 1:
        both = len(reference) == len(values)
        return "one run each: no verdict" if both else "one run on one side: no verdict"
    if min(values) <= max(reference) and min(reference) <= max(values):
        return "within the noise"
    above = min(values) > max(reference)
    word = (
        ("faster" if above == (better == "higher") else "slower") if unit in SPEED else ("higher" if above else "lower")
    )
    return f"{word} (2 runs only, their spreads do not overlap)" if few == 2 else word


def figures(row: list[Cell | None], reasons: list[list[str]]) -> list[dict[str, Any]]:
    """Medians, spreads, ratios to the first run, verdicts. `reasons` has one list a run; with one there is no ratio."""
    told = []
    medians = {name: [_median(cell, path) for cell in row] for name, _, _, path in FIGURES}
    for name, unit, better, path in FIGURES:
        values = [samples(cell, path) for cell in row]
        if (
            not any(values)
            or name in MEANS
            and not any(
                mean is not None and middle is None
                for mean, middle in zip(medians[name], medians[MEANS[name]], strict=True)
            )
        ):
            continue
        first = medians[name][0]
        ratios: list[float | None] = []
        verdicts: list[str] = []
        for place, middle in enumerate(medians[name]):
            fit = not reasons[place] and name != UNSTATED
            ratios.append(middle / first if fit and first and middle is not None else None)
            if place == 0:
                verdicts.append("reference")
            elif name == UNSTATED:
                verdicts.append("kind not stated: no verdict")
            elif reasons[place]:
                verdicts.append("not comparable")
            else:
                verdicts.append(verdict(values[0], values[place], better, unit))
        told.append(
            {
                "name": name,
                "unit": unit,
                "better": better,
                "medians": medians[name],
                "spreads": [[min(found), max(found)] if found else None for found in values],
                "n": [len(found) for found in values],
                "ratios": ratios,
                "verdicts": verdicts,
            }
        )
    return told


def row_reasons(row: list[Cell | None], names: list[str]) -> list[list[str]]:
    """Why each run of a row cannot be compared with the first; that one has none."""
    if row[0] is None:
        have = [cell.name for cell in row if cell]
        return [[], *([f"only {' and '.join(have)} has this load"] for _ in row[1:])]
    return [
        [],
        *(
            why_not(row[0], cell) if cell else [f"{name} has no such load"]
            for cell, name in zip(row[1:], names[1:], strict=True)
        ),
    ]


def rung_row(row: list[Cell | None], names: list[str]) -> dict[str, Any]:
    """A load with its figures. It is comparable when any run can be compared with the first; the reasons are of the others."""
    reasons = row_reasons(row, names)
    cell = next(cell for cell in row if cell)
    load = {key: value for key, value in cell.load.items() if key != "seed"}
    return {
        "load": load,
        "comparable": any(not found for found in reasons[1:]),
        "reasons": list(dict.fromkeys(reason for found in reasons for reason in found)),
        "figures": figures(row, reasons),
    }


# --- the comparison ---------------------------------------------------------------------------------------------------


def short_names(runs: list[dict[str, Any]]) -> list[str]:
    """A name for each run that tells it from the others."""
    plain = [
        str((run.get("source") or {}).get("name") or run.get("label") or run.get("profile") or run["id"])
        for run in runs
    ]
    doubled = {name for name, count in collections.Counter(plain).items() if count > 1}
    named = [f"{name} {run['id']}" if name in doubled else name for name, run in zip(plain, runs, strict=True)]
    seen: collections.Counter[str] = collections.Counter()
    for place, name in enumerate(named):
        seen[name] += 1
        named[place] = f"{name} ({seen[name]})" if seen[name] > 1 else name
    return named


def compare(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Two or more runs side by side; the first is the reference. Ratios are the others' figures over its own.

    Other models, engines and GPUs can be compared, and `reasons` says that it is deployments that are. Raises RunError for fewer.
    """
    if len(runs) < 2:
        raise RunError(f"A comparison takes two runs or more, not {len(runs)}.")
    names = short_names(runs)
    told = [rung_row(row, names) for row in rows(runs, names)]
    different, defaults = differences(runs)
    comparable = any(rung["comparable"] for rung in told)
    reasons = [
        *_other_thing(different, names),
        *(
            f"{name} is not at its end: loads are missing"
            for name, run in zip(names, runs, strict=True)
            if run["finished"] is None
        ),
    ]
    if not comparable:
        reasons += _obstacles([reason for rung in told for reason in rung["reasons"]]) or ["no load was measured"]
    sources = [run.get("source") or {} for run in runs]
    result = {
        "runs": [
            {
                "name": name,
                "title": source.get("title") or name,
                "kind": source.get("kind") or "run",
                "started": run["started"],
                "path": source.get("path") or "",
            }
            for name, source, run in zip(names, sources, runs, strict=True)
        ],
        "comparable": comparable,
        "reasons": reasons,
        "differences": different,
        "defaults": defaults,
        "rungs": told,
    }
    return {**result, "summary": summary(result)}


def _other_thing(different: list[dict[str, Any]], names: list[str]) -> list[str]:
    """What is compared when it is not one model on one kind of machine."""
    found = []
    for group, name, what in (
        ("model", "model", "models"),
        ("versions", "engine", "engines"),
        ("host", "GPUs", "GPUs"),
    ):
        for row in different:
            if (row["group"], row["name"]) == (group, name):
                each = ", ".join(f"{value} ({run})" for value, run in zip(row["values"], names, strict=True))
                found.append(f"other {what}: {each}. The figures compare the deployments, not a setting")
    return found


def summary(comparison: dict[str, Any]) -> list[str]:
    """What a person should take away, in two to five sentences."""
    names = [run["name"] for run in comparison["runs"]]
    said: list[str] = []
    for place, name in enumerate(names[1:], 1):
        if len(said) == 3:
            break
        said += _outcome(comparison["rungs"], place, name, names[0], latency=len(names) == 2)
    if not comparison["comparable"]:
        reasons = (
            _obstacles([reason for rung in comparison["rungs"] for reason in rung["reasons"]]) or comparison["reasons"]
        )
        said = [f"Nothing of {' and '.join(names)} can be compared: {'; '.join(_few(reasons, 3))}."]
    else:
        said += [_sentence(reason) for reason in comparison["reasons"][:1]]
    return [*said[:4], _differ(comparison)]


def _obstacles(reasons: list[str]) -> list[str]:
    """What keeps runs from being compared; that one side lacks a load only where nothing else is wrong."""
    each = list(dict.fromkeys(reasons))
    return [reason for reason in each if not reason.endswith(ABSENT)] or each


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _outcome(told: list[dict[str, Any]], place: int, name: str, first: str, latency: bool) -> list[str]:
    """One run against the first at the largest load that both have."""
    best: tuple[int, dict[str, Any], dict[str, Any]] | None = None
    for rung in told:
        for figure in rung["figures"]:
            if figure["name"] in ("output throughput", "total throughput") and figure["ratios"][place] is not None:
                size = rung["load"].get("concurrency") or 0
                if best is None or size > best[0]:
                    best = size, rung, figure
    if best is None:
        return [f"{name} and {first} have no load that can be compared."]
    size, rung, figure = best
    kind = figure["name"].split()[0]
    does = "writes" if kind == "output" else "handles"
    at = f"at {size} requests at once"
    ratio = figure["ratios"][place]
    every = [
        other["ratios"][place]
        for one in told
        for other in one["figures"]
        if other["name"] == figure["name"] and other["ratios"][place] is not None
    ]
    spread = (
        f", {_times(min(every))} to {_times(max(every))} over the {len(every)} loads that both have"
        if len(every) > 1
        else ""
    )
    said = [
        f"{name} {does} {_times(ratio)} times the {kind} tokens a second of {first} {at} ({figure['verdicts'][place]}){spread}."
    ]
    for other in rung["figures"]:
        if latency and other["name"] in ("TTFT median", "TTFT mean") and other["ratios"][place] is not None:
            kind = other["name"].removeprefix("TTFT ")
            said.append(
                f"Its {kind} time to the first token there is {_times(other['ratios'][place])} times as long "
                f"({other['verdicts'][place]})."
            )
            break
    return said


def _differ(comparison: dict[str, Any]) -> str:
    """What differs, in a sentence: what was set, then versions and the rest by number."""
    different, defaults = comparison["differences"], comparison["defaults"]
    parts = []
    for groups, one, many in (
        (("arguments",), "1 argument that was set", "arguments that were set"),
        (("versions",), "1 version", "versions"),
        (("patches", "tuning"), "1 patch or tuning", "patches and tuning"),
        (("environment",), "1 variable", "variables"),
        (("host",), "1 property of the host", "properties of the host"),
    ):
        found = [
            row["name"] for row in different if row["group"] in groups and (row["set"] or groups != ("arguments",))
        ]
        if found:
            parts.append(f"{one if len(found) == 1 else f'{len(found)} {many}'} ({', '.join(_few(found, 3))})")
    if defaults["changed"] or defaults["only_in_some"]:
        parts.append(
            f"defaults of their releases ({len(defaults['changed'])} changed, {defaults['only_in_some']} options that not all have)"
        )
    return (
        f"They differ in {'; '.join(parts)}." if parts else "In what was recorded of the deployments, nothing differs."
    )


def _few(texts: list[str], most: int) -> list[str]:
    return texts if len(texts) <= most else [*texts[:most], f"{len(texts) - most} more"]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".") if text else text


# --- the gate ---------------------------------------------------------------------------------------------------------


def load_text(load: dict[str, Any]) -> str:
    """A load in a few words."""
    parts = [f"{show(load.get('concurrency'))} at once"]
    if load.get("input_len") and load.get("output_len"):
        parts.append(f"{load['input_len']} in, {load['output_len']} out")
    return ", ".join([*parts, *filter(None, [pace(load)])])


def pace(load: dict[str, Any]) -> str:
    """When a load's requests come, in words; empty where the next one comes as soon as there is a place for it."""
    if load.get("dataset") == "trace":
        slowdown = load.get("trace_slowdown", 1.0)
        if slowdown is None:
            return "slowdown of the trace not stated"
        return "at recorded times" if slowdown == 1 else f"at recorded times x {slowdown:g}"
    rate = load.get("request_rate")
    return f"{rate:g} requests a second" if rate else ""


def _unlike(text: str, load: dict[str, Any], told: set[str]) -> str:
    """A load's words, or more of them where others have those: no ratio takes the place of another."""
    longer = f"{text}, {load.get('prompts')} requests in all"
    numbered = (f"{longer} ({number})" for number in itertools.count(2))
    return next(words for words in itertools.chain([text, longer], numbered) if words not in told)


def gate(reference: dict[str, Any], run: dict[str, Any], min_ratio: float) -> dict[str, Any]:
    """Whether a run's output throughput is at least `min_ratio` of a reference's, at every load that both have.

    `passed`, `ratios` (load in words to ratio) and `msg`. What cannot be compared has not passed.
    """
    names = short_names([reference, run])
    ratios: dict[str, float] = {}
    problems: list[str] = []
    others: list[str] = []
    told: set[str] = set()
    output = FIGURES[0][3]
    for row in rows([reference, run], names):
        old, new = row
        if old is None or new is None or load_key(old.load) != load_key(new.load):
            others += row_reasons(row, names)[1]
            continue
        where = _unlike(load_text(new.load), new.load, told)
        told.add(where)
        reasons = why_not(old, new)
        before, after = _median(old, output), _median(new, output)
        if not reasons and (not before or after is None):
            reasons = [f"{names[0] if not before else names[1]} states no output throughput"]
        if reasons:
            problems.append(f"at {where}: {'; '.join(reasons)}")
        else:
            ratios[where] = (after or 0.0) / (before or 1.0)
    if not ratios and not problems:
        why = "; ".join(_few(_obstacles(others), 3))
        problems = [f"no load in common ({why})" if why else "no load in common"]
    low = {where: ratio for where, ratio in ratios.items() if ratio < min_ratio}
    which = "; ".join(f"{ratio:.3f} at {where}" for where, ratio in (low or ratios).items())
    if problems:
        msg = f"{names[1]} cannot be held against {names[0]}: {'; '.join(problems)}."
    elif low:
        msg = f"{names[1]} writes less than {min_ratio:g} times the output tokens a second of {names[0]}: {which}."
    else:
        msg = f"{names[1]} writes at least {min_ratio:g} times the output tokens a second of {names[0]}: {which}."
    return {"passed": bool(ratios) and not problems and not low, "ratios": ratios, "msg": msg}
