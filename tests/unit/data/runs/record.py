"""Make the run.json files of this folder from recordings: `python record.py RECORDINGS`.

RECORDINGS holds h200-sglang-0.5.15.post1/ and cpu-sglang/, as README.md tells. Figures and verdicts are those of
library/sglang_bench.py. Nothing is measured or made up: what was not recorded is null, empty or said to be missing.
"""

from __future__ import annotations

import csv
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "library"))
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

import sglang_bench

# When the server answered the client's question after each H200 load (GET /server_info in its log), UTC, whole seconds.
ENDS = ["2026-11-29T17:18:37", "2026-11-29T17:19:23", "2026-11-29T17:20:04"]
# What /server_info tells beside the arguments.
STATE = ("status", "max_total_num_tokens", "max_req_input_len", "internal_states", "version", "kv_events")
SECRET = ("api_key", "admin_api_key", "ssl_keyfile_password")
PERIOD_S = 0.5


def arguments(info: dict[str, Any]) -> dict[str, Any]:
    return sglang_bench.clean({key: value for key, value in info.items() if key not in STATE and key not in SECRET})


def spread(values: list[float]) -> dict[str, float]:
    return {"mean": sum(values) / len(values), "peak": max(values), "min": min(values)}


def telemetry(lines: list[dict[str, str]], end: str, duration: float, output_tokens: float) -> dict[str, Any]:
    """One card's summary for the client's time, which is known to a second only."""
    last = datetime.datetime.fromisoformat(end) + datetime.timedelta(seconds=1)
    first = last - datetime.timedelta(seconds=duration + 1)
    form = "%Y/%m/%d %H:%M:%S.%f"
    seen = [line for line in lines if first <= datetime.datetime.strptime(line["timestamp"], form) <= last]

    def column(name: str) -> list[float]:
        return [float(line[name].split()[0]) for line in seen]

    power = column("power.draw [W]")
    limit = column("power.limit [W]")[0]
    energy = spread(power)["mean"] * duration
    return {
        "period_s": PERIOD_S,
        "samples": len(seen),
        "window": {"kind": "whole", "from_s": 0, "to_s": duration},
        "gpus": [
            {
                "index": 0,
                "name": seen[0]["name"],
                "power_w": spread(power),
                "limit_w": limit,
                "power_of_limit": spread(power)["mean"] / limit,
                "utilization_percent": spread(column("utilization.gpu [%]")),
                "sm_clock_mhz": spread(column("clocks.current.sm [MHz]")),
                "temperature_c": spread(column("temperature.gpu")),
                "memory_mib": spread(column("memory.used [MiB]")),
                "throttle": {},
            }
        ],
        "power_w": spread(power),
        "limit_w": limit,
        "power_of_limit": spread(power)["mean"] / limit,
        "utilization_percent": spread(column("utilization.gpu [%]")),
        "energy_j": energy,
        "output_tokens_per_j": output_tokens / energy,
        "host": {},
        "engine": {},
        "missing": [
            "throttle reasons: not recorded",
            "host and engine: not recorded",
            "the client's time is known to a second only, so up to two samples before or after it are counted",
        ],
    }


def rung(index: int, result: dict[str, Any], seed: int, watched: dict[str, Any] | None, end: str) -> dict[str, Any]:
    prompts = result["completed"]
    load = {
        "concurrency": result["max_concurrency"],
        "prompts": prompts,
        "input_len": result["random_input_len"],
        "output_len": result["random_output_len"],
        "range_ratio": result["random_range_ratio"],
        "dataset": result["dataset_name"],
        "request_rate": None,
        "seed": seed,
    }
    figures = {**sglang_bench.metrics(result, prompts), "cached_token_ratio": None}
    found = sglang_bench.problems(result, figures, load)
    notes = sglang_bench.remarks(result, load)
    if figures["ttft_ms"]["median"] == 0:
        notes.append(
            "TTFT is 0 for more than half of the requests: random weights make tokens without text, and the client times the "
            "first text. The recording has no figures by request, so this was not judged."
        )
    return {
        "index": index,
        "repeat": 0,
        "load": load,
        "status": "measured",
        "valid": not found,
        "problems": found,
        "notes": notes,
        "findings": [],
        "started": "",
        "finished": f"{end}Z" if end else "",
        "metrics": figures,
        "telemetry": watched,
        "client": {"module": "sglang.bench_serving", "version": (result.get("server_info") or {}).get("version")},
        "command": [],
        "files": {},
    }


def run(
    name: str, started: str, profile: str, url: str, info: dict[str, Any], rungs: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "schema": 2,
        "id": name,
        "host": name.rsplit("-", 1)[1],
        "profile": profile,
        "label": "",
        "started": started,
        "finished": rungs[-1]["finished"] or started,
        "seed": rungs[0]["load"]["seed"],
        "repeats": 1,
        "target": {
            "url": url,
            "python": "",
            "model_path": info["model_path"],
            "served_model": info["served_model_name"],
            "deployed": False,
        },
        "server": {"sglang": info["version"], "arguments": arguments(info)},
        "deployment": {},
        "node": {},
        "tuning": {},
        "answers": {},
        "rungs": rungs,
        "valid": all(entry["valid"] for entry in rungs),
        "problems": [],
    }


def main() -> None:
    recordings = Path(sys.argv[1])
    folder = recordings / "h200-sglang-0.5.15.post1"
    results = [sglang_bench.parse_result(line) for line in (folder / "bench_serving.jsonl").read_text().splitlines()]
    with (folder / "nvidia-smi.csv").open(newline="") as file:
        lines = list(csv.DictReader(file, skipinitialspace=True))
    rungs = [
        rung(index, result, 42, telemetry(lines, end, result["duration"], result["total_output_tokens"]), end)
        for index, (result, end) in enumerate(zip(results, ENDS, strict=True))
    ]
    for entry in rungs:
        entry["notes"].append("the prefix cache was not flushed before this load, and each load had the same seed")
    info = results[0]["server_info"]
    name = "20261129T171803Z-h200"
    made = {
        "h200-0.5.15.post1.json": run(
            name, "2026-11-29T17:18:03Z", "tiny_qwen3_moe", "http://127.0.0.1:31000", info, rungs
        )
    }
    for version, source in (("0.5.23", "clean_v23_llama.jsonl"), ("0.5.9", "clean_v59_llama.jsonl")):
        result = sglang_bench.parse_result((recordings / "cpu-sglang" / source).read_text())
        name = f"20261129T000000Z-cpu{version.replace('.', '')}"
        made[f"cpu-{version}.json"] = run(
            name, "2026-11-29T00:00:00Z", "tiny_llama", "", result["server_info"], [rung(0, result, 1, None, "")]
        )
    for name, value in made.items():
        text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"
        (Path(__file__).parent / name).write_text(text, encoding="utf-8")
        print(name, len(text))


if __name__ == "__main__":
    main()
