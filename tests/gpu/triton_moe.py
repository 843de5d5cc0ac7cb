#!/usr/bin/env python3
"""Tune SGLang's Triton MoE kernel for the sizes that a server's log asked for, and write an artefact of tuning/ for it.

A small search, to have a file that was measured: `tuning/README.md` says what an artefact is. Run on a GPU with the release's
Python.

    triton_moe.py --log SERVER_LOG --hidden 256 --top-k 2 --out FOLDER
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.metadata
import itertools
import json
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any

import torch
import triton

WANTED = re.compile(r"Config file not found at \S*?(E=(\d+),N=(\d+),device_name=[^/\s]*?\.json)")
TOKENS = (1, 8, 64, 256, 1024)
ROUNDS = 5


def candidates() -> list[dict[str, int]]:
    sizes = itertools.product((16, 32, 64), (32, 64, 128), (64, 128), (4, 8), (2, 3))
    names = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_stages")
    return [{**dict(zip(names, values, strict=True)), "GROUP_SIZE_M": 1} for values in sizes]


def microseconds(call: Any, calls: int = 20) -> float:
    """Median of several batches of calls in one CUDA graph, so that Python's own time does not count."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    times = []
    for _ in range(9):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / calls)
    return statistics.median(times)


def kernel(experts: int, width: int, hidden: int, top_k: int, tokens: int) -> Any:
    """The call that the engine makes in each MoE layer."""
    from sglang.srt.layers.moe.moe_runner import MoeRunnerConfig
    from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe import fused_moe
    from sglang.srt.layers.moe.topk import TopKConfig, select_experts

    torch.manual_seed(0)
    half = {"device": "cuda", "dtype": torch.bfloat16}
    states = torch.randn(tokens, hidden, **half)
    first = torch.randn(experts, 2 * width, hidden, **half) / 16
    second = torch.randn(experts, hidden, width, **half) / 16
    chosen = select_experts(states, torch.randn(tokens, experts, **half), TopKConfig(top_k=top_k, renormalize=True))
    config = MoeRunnerConfig(inplace=False)
    return lambda: fused_moe(states, first, second, chosen, config)


def best(call: Any) -> tuple[dict[str, int], float]:
    from sglang.srt.layers.moe.moe_runner.triton_utils import override_config

    found: list[tuple[float, dict[str, int]]] = []
    for one in candidates():
        with override_config(one):
            found.append((microseconds(call), one))
    time, config = min(found, key=lambda pair: pair[0])
    return config, time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--top-k", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    from sglang.srt.layers.moe.moe_runner.triton_utils import override_config
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy"))
    wanted = {found[1]: (int(found[2]), int(found[3])) for found in WANTED.finditer(options.log.read_text())}
    (name, (experts, width)), *_ = sorted((name, sizes) for name, sizes in wanted.items() if "_down" not in name)
    configs: dict[str, Any] = {}
    ratios, table = [], []
    for tokens in TOKENS:
        call = kernel(experts, width, options.hidden, options.top_k, tokens)
        configs[str(tokens)], _ = best(call)
        before, after = [], []
        for _ in range(ROUNDS):  # in turns, since clocks drift
            before.append(microseconds(call))
            with override_config(configs[str(tokens)]):
                after.append(microseconds(call))
        ratios.append(statistics.median(before) / statistics.median(after))
        table.append({"tokens": tokens, "default_us": statistics.median(before), "tuned_us": statistics.median(after)})
        print(table[-1], configs[str(tokens)], flush=True)
    gain = statistics.geometric_mean(ratios)
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(configs, indent=4) + "\n"
    (options.out / name).write_text(text)
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[0]
    artefact = {
        "name": options.out.name,
        "kind": "triton_moe",
        "device": torch.cuda.get_device_name(),
        "compute_capability": "{}.{}".format(*torch.cuda.get_device_capability()),
        "driver": driver,
        "versions": {
            "triton": triton.__version__,
            "torch": torch.__version__.split("+")[0],
            "sglang": importlib.metadata.version("sglang"),
        },
        "profile": "gpu_demo",
        "made": {
            "by": "the sglang-rtxpro authors",
            "at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "how": f"tests/gpu/triton_moe.py, {len(candidates())} candidates",
        },
        "gain": {
            "what": f"the kernel's time at {', '.join(map(str, TOKENS))} tokens, geometric mean of the ratios, medians of {ROUNDS}",
            "before": 1.0,
            "after": round(1 / gain, 4),
            "percent": round((gain - 1) * 100, 1),
        },
        "files": {name: hashlib.sha256(text.encode()).hexdigest()},
    }
    (options.out / "artefact.yml").write_text(json.dumps(artefact, indent=2) + "\n")
    print(json.dumps({"artefact": artefact, "table": table}), flush=True)


if __name__ == "__main__":
    main()
