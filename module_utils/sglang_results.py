# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Measurements on the controller: which loads are to be put on a server, which of them are done, and their files.

A run is a folder `results/<profile>/<time>-<host>/` with `run.json` (schemas/run.schema.json). It is written after every load, so
that a ladder that was broken goes on where it stopped. For action plugins; Python 3.11.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

SCHEMA = 2
# Seconds after which a broken ladder is not taken up any more: the machine's other work, its heat and its clock have changed.
RESUMED_WITHIN = 24 * 3600.0
# What a load has where nothing is said.
LOAD = {"input_len": None, "output_len": None, "range_ratio": 1.0, "dataset": "random-ids", "request_rate": None}
# What a run must share with a broken one to go on with it.
SAME = ("schema", "host", "profile", "label", "repeats")
# Of the target, what another server would have otherwise.
SERVER = ("url", "python", "model_path", "served_model")


def stamp(at: float) -> str:
    """A moment (seconds since 1970) as UTC, 2026-11-30T10:15:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def write(path: Path, content: str | bytes) -> None:
    """A whole file or none: it gets its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.new")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def save(folder: Path, run: dict[str, Any]) -> Path:
    """run.json. ValueError for a number that JSON does not have, before anything is written."""
    text = json.dumps(run, indent=1, sort_keys=True, allow_nan=False) + "\n"
    write(folder / "run.json", text)
    return folder / "run.json"


@contextlib.contextmanager
def held(folder: Path, patience: float = 30.0) -> Iterator[None]:
    """A run that is being measured: two that go on with one would each take the other's load for lost.

    A run that was killed lets go of it within seconds, `patience` at most. RuntimeError when another one has it.
    """
    path = folder / ".lock"
    with path.open("w", encoding="utf-8") as stream:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise RuntimeError(
                        f"{folder} is being measured by another run of this machine. Wait for it or end it; two at once would "
                        "measure each other."
                    ) from None
            time.sleep(0.5)
        yield


def complete(load: dict[str, Any]) -> dict[str, Any]:
    """A load with everything that is not said, and without what says nothing."""
    return {**LOAD, **{key: value for key, value in load.items() if value is not None}}


def ladder(loads: list[dict[str, Any]], repeats: int, seed: int) -> list[dict[str, Any]]:
    """Every measurement of a run in its order: index, repeat and load, each load with a seed of its own.

    A repeat climbs the whole ladder again, so that what changes on a machine over time touches all rungs alike.
    """
    return [
        {"index": index, "repeat": repeat, "load": {**complete(load), "seed": seed + repeat * len(loads) + index}}
        for repeat in range(repeats)
        for index, load in enumerate(loads)
    ]


def tried(run: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """A load with a seed that no try of it has had: what was sent once may be in the prefix cache."""
    seeds = [rung["load"]["seed"] for rung in run["rungs"] if rung["status"] != "not_run"]
    if asked["load"]["seed"] not in seeds:
        return asked
    return {**asked, "load": {**asked["load"], "seed": max(seeds) + 1}}


def to_do(run: dict[str, Any], wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What of a ladder is still to be measured: a rung that failed or is invalid is measured again."""
    done = {(rung["index"], rung["repeat"]) for rung in run["rungs"] if rung["status"] == "measured" and rung["valid"]}
    return [rung for rung in wanted if (rung["index"], rung["repeat"]) not in done]


def fingerprint(run: dict[str, Any], loads: list[dict[str, Any]]) -> dict[str, Any]:
    """What makes two runs the same measurement of the same server."""
    return {
        **{key: run[key] for key in SAME},
        **{key: run["target"][key] for key in SERVER},
        "deployment": run["deployment"].get("digest") or run["deployment"].get("argv"),
        "environment": run["server"].get("environment"),
        "loads": [complete(load) for load in loads],
    }


def unfinished(parent: Path, name: str, fits: Callable[[dict[str, Any]], bool], now: float) -> Path | None:
    """The newest folder below `parent` whose file `name` fits, was not ended (`finished`), and is not too old."""
    for path in sorted(parent.glob(f"*/{name}"), reverse=True):
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["finished"] is None and now - path.stat().st_mtime <= RESUMED_WITHIN and fits(kept):
                return path.parent
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # somebody's own file, or one of another time
    return None


def broken(parent: Path, wanted: dict[str, Any], now: float) -> Path | None:
    """The newest run below a folder that is the same measurement, and was not ended."""
    return unfinished(parent, "run.json", lambda run: fingerprint(run, run["target"]["loads"]) == wanted, now)


def rung(asked: dict[str, Any], step: dict[str, Any], began: float, ended: float) -> dict[str, Any]:
    """What run.json keeps of one load: `asked` as `ladder` has it, `step` the result of the module sglang_bench."""
    failed = bool(step.get("failed"))
    return {
        "index": asked["index"],
        "repeat": asked["repeat"],
        "load": asked["load"],
        "status": "failed" if failed else "measured",
        "valid": not failed and bool(step.get("valid")),
        "problems": [str(step.get("msg") or "It failed without a word.")] if failed else step.get("problems", []),
        "notes": step.get("notes", []),
        "findings": [],
        "started": step.get("began") or stamp(began),
        "finished": step.get("ended") or stamp(ended),
        "metrics": None if failed else step.get("metrics"),
        "telemetry": None if failed else step.get("telemetry"),
        "client": step.get("client", {}),
        "command": step.get("command", []),
        "files": {},
    }


def not_run(asked: dict[str, Any], why: str, at: float) -> dict[str, Any]:
    """A rung that nobody tried."""
    return {**rung(asked, {"failed": True, "msg": why}, at, at), "status": "not_run"}


def keep(run: dict[str, Any], one: dict[str, Any]) -> None:
    """Put a rung into a run, in the place of an earlier try. What was measured stays where nobody tried again."""
    place = (one["index"], one["repeat"])
    if one["status"] == "not_run" and any(
        (rung["index"], rung["repeat"]) == place and rung["status"] == "measured" for rung in run["rungs"]
    ):
        return
    others = [rung for rung in run["rungs"] if (rung["index"], rung["repeat"]) != place]
    run["rungs"] = sorted([*others, one], key=lambda rung: (rung["repeat"], rung["index"]))


def files(folder: Path, one: dict[str, Any], contents: dict[str, str]) -> dict[str, str]:
    """Write what the node sent of a rung (base64 of gzip, by name), and say where each lies below the run's folder."""
    suffix = {"raw": "jsonl.gz", "telemetry": "csv.gz", "output": "txt.gz"}
    names = {
        name: f"{name}/{one['repeat'] + 1}-{one['index'] + 1:02}.{suffix[name]}" for name in contents if name in suffix
    }
    for name, path in names.items():
        write(folder / path, base64.b64decode(contents[name]))
    return names


def judged(run: dict[str, Any], more: Iterable[str] = ()) -> dict[str, Any]:
    """A run with `problems` and `valid` as its rungs and its answers say, and what else speaks against it."""
    problems = list(more)
    after = run["answers"].get("after")
    if after and not after["passed"]:
        problems.append(f"after the loads the answers are wrong: {after['summary']}")
    bad = sum(not rung["valid"] for rung in run["rungs"])
    if bad:
        problems.append(f"{bad} of {len(run['rungs'])} measurements are invalid, failed or were not run")
    return {**run, "problems": problems, "valid": bool(run["rungs"]) and not problems}
