#!/usr/bin/env python3
"""The program module_utils/flashinfer_tuner.py on a GPU, for bmm_fp8: kernels that are built in seconds.

It runs with the Python that runs this file, which must import torch and flashinfer, and keeps everything it wrote: the tuned files,
the logs of all processes and the results, a folder for each case.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).resolve().parents[2] / "module_utils/flashinfer_tuner.py"
# The latent attention of GLM-5 and of Kimi K2 with TP 8: both projections that are absorbed.
SHAPES = [
    {"batch": 8, "k": 192, "n": 512},
    {"batch": 8, "k": 512, "n": 256},
    {"batch": 8, "k": 128, "n": 512},
    {"batch": 1, "k": 2048, "n": 1024},
]
CASES = {
    "cache": ("autotune_cache", "cublas"),
    "module": ("python_configs", "cublas"),
    "all-backends": ("autotune_cache", "auto"),
}


def case(folder: Path, kind: str, backend: str, words: argparse.Namespace) -> dict[str, Any]:
    """One whole run of the program; its result, or what failed."""
    folder.mkdir(parents=True)
    operations = [
        {"op": "bmm_fp8", "backend": backend, "scale_dims": 1, "max_tokens": words.max_tokens, **shape}
        for shape in SHAPES[: words.shapes]
    ]
    question = {
        "mode": "run",
        "folder": str(folder),
        "operations": operations,
        "kind": kind,
        "rounds": words.rounds,
        "min_gain": words.min_gain,
    }
    (folder / "question.json").write_text(json.dumps(question, indent=1))
    with open(folder / "errors.log", "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-B", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(question))
        process.stdin.close()
        said: dict[str, Any] = {}
        shown = ""
        for line in process.stdout:
            said = json.loads(line)
            # Buckets by the dozen; one line an operation is enough here.
            head = said.get("progress", "").rpartition(" at ")[0] or said.get("progress", "")
            if head and head != shown:
                print("   ", said["progress"], flush=True)
                shown = head
        process.wait()
    if "written" not in said.get("result", {}):
        return said
    return json.loads((folder / said["result"]["written"]).read_text())


def table(told: dict[str, Any]) -> None:
    for shape in told["shapes"]:
        figures = [
            f"{shape[name]:10.3f}" if shape[name] is not None else f"{'-':>10}"
            for name in ("before_us", "after_us", "ratio")
        ]
        marks = [
            "bucket " if shape["bucket"] else "between",
            *figures,
            "hit" if shape["hit"] else "MISS",
            shape["error"],
        ]
        print(f"    {shape['op']:32} {shape['tokens']:6} {' '.join(marks)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=os.environ.get("OUT", "tune-out"), help="folder for all that is written")
    parser.add_argument("--max-tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many of the shapes")
    parser.add_argument("--min-gain", type=float, default=1.0)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}; all if left out")
    words = parser.parse_args()
    ended = 0
    for name in words.cases:
        kind, backend = CASES[name]
        print(f"--- {name}", flush=True)
        began = time.monotonic()
        told = case(Path(words.out) / name, kind, backend, words)
        print(f"    {time.monotonic() - began:.1f} s")
        if "made" not in told:
            print("    FAILED", json.dumps(told))
            ended = 1
            continue
        table(told)
        short = {
            name: told[name]
            for name in ("made", "why", "gain", "spread_percent", "rounds", "entries", "failed_tactics", "file")
        }
        print("   ", json.dumps(short), flush=True)
        print("   ", json.dumps(told["node"]["versions"]), json.dumps(told["node"]["devices"]), flush=True)
    return ended


if __name__ == "__main__":
    sys.exit(main())
