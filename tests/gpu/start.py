#!/usr/bin/env python3
"""On a GPU without systemd: a first start against the next one by stage, and the engine within the unit's walls against by hand.

    PYTHON=/opt/venv/bin/python python3 tests/gpu/start.py OUT [TURNS] [--only loads]

The engine runs through sandbox.py as the unit would let it (another user, its capabilities and system calls, the unit's
environment), with a Glm4Moe of a few layers and random weights. "First" is a home that is empty and packages that are out of the
page cache; "next" is the same home again. Then a second engine is started by hand beside it, and both get the same loads in turns,
each of them first in every other turn. With `--only loads` both start at once, from homes that are empty.
Prints a JSON line a start and a load, and keeps them with the logs in OUT.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "module_utils"))

import sglang_log

PYTHON = os.environ.get("PYTHON", sys.executable)
MODEL = Path("/var/tmp/sglang-gpu-model")
HOMES = Path("/var/tmp/sglang-gpu-homes")
USER = 65534
SIZES = {
    **{"hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 4},
    **{"n_routed_experts": 64, "num_experts_per_tok": 8, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
}  # fmt: skip
READY = 420  # seconds


def make_model() -> None:
    program = ROOT / "roles/sglang_model/files/make_tiny_glm4_moe.py"
    subprocess.run([PYTHON, str(program), str(MODEL)], check=True, stdout=subprocess.DEVNULL)
    config = json.loads((MODEL / "config.json").read_text())
    (MODEL / "config.json").write_text(json.dumps({**config, **SIZES}))
    # By hand and within the walls, both may read it.
    for path in [MODEL, *MODEL.iterdir()]:
        path.chmod(0o755)


def drop(folder: str) -> None:
    for top, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(top, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def forget_packages() -> None:
    """Take SGLang, torch and what lies beside them out of the page cache."""
    found = subprocess.run(
        [PYTHON, "-c", "import sglang, torch; print(sglang.__path__[0], torch.__path__[0])"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    for folder in {str(Path(path).parent) for path in found}:
        drop(folder)


class Engine:
    """One server; its stages are noted as it says them."""

    def __init__(self, name: str, home: Path, port: int, walls: bool, out: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        argv = [PYTHON, "-m", "sglang.launch_server", "--model-path", str(MODEL), "--load-format", "dummy"]
        argv += ["--attention-backend", "triton", "--moe-runner-backend", "triton", "--port", str(port)]
        argv += ["--max-running-requests", "64", "--max-total-tokens", "65536", "--mem-fraction-static", "0.3"]
        argv += ["--cuda-graph-max-bs", "64", "--enable-metrics"]
        home.mkdir(parents=True, exist_ok=True)
        os.chmod(HOMES, 0o755)
        if walls:
            os.chown(home, USER, USER)
            argv = [sys.executable, str(HERE / "sandbox.py"), "--user", str(USER), "--", *argv]
        known = {
            name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_HOME") if name in os.environ
        }
        environment = {**known, "HOME": str(home), "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}"}
        self.stages: dict[str, float] = {}
        self.began = time.monotonic()
        self.log = (out / f"{name}.log").open("w", buffering=1)
        self.process = subprocess.Popen(
            argv, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        stages = sglang_log.StageReader()
        for line in self.process.stdout or ():
            self.log.write(line)
            for found in stages.feed(sglang_log.parse_line(line)):
                self.stages[found.name] = round(time.monotonic() - self.began, 2)

    def ready(self) -> dict[str, float]:
        until = time.monotonic() + READY
        while sglang_log.READY not in self.stages:
            if self.process.poll() is not None or time.monotonic() > until:
                self.end()
                sys.exit(f"The engine did not start: see {self.log.name}")
            time.sleep(0.1)
        return self.stages

    def serve(self, prompts: int, out: Path) -> tuple[float, float]:
        """Output tokens per second of a load, and its seconds."""
        result = out / "load.jsonl"
        result.unlink(missing_ok=True)
        words = ["--backend", "sglang", "--base-url", self.url, "--model", str(MODEL), "--dataset-name", "random-ids"]
        words += ["--num-prompts", str(prompts), "--max-concurrency", "64"]
        words += ["--random-input-len", "256", "--random-output-len", "128", "--random-range-ratio", "1.0"]
        words += ["--tokenize-prompt", "--flush-cache", "--disable-tqdm", "--seed", "1"]
        argv = [PYTHON, "-m", "sglang.bench_serving", *words, "--output-file", str(result)]
        with (out / "load.log").open("a") as log:
            subprocess.run(argv, check=True, stdout=log, stderr=subprocess.STDOUT)
        told = json.loads(result.read_text())
        if told["completed"] != prompts:
            sys.exit(f"{told['completed']} of {prompts} requests were answered: see {out / 'load.log'}")
        return float(told["output_throughput"]), float(told["duration"])

    def end(self) -> None:
        if self.log.closed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.reader.join(5)
        self.log.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for figures and logs")
    parser.add_argument("turns", type=int, nargs="?", default=3, help="loads that each engine gets and that count")
    parser.add_argument("--only", choices=["loads"], help="leave out the first start against the next one")
    parser.add_argument(
        "--prompts", type=int, default=2048, help="requests of a load: it should take ten seconds or more"
    )
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(HOMES, ignore_errors=True)
    kept = (out / "figures.jsonl").open("a")

    def say(**told: object) -> None:
        text = json.dumps(told)
        print(text, flush=True)
        kept.write(text + "\n")
        kept.flush()

    make_model()
    started = []

    def start(name: str, home: str, port: int, walls: bool) -> Engine:
        started.append(Engine(name, HOMES / home, port, walls, out))
        return started[-1]

    try:
        if options.only:
            walls, hand = start("walls", "walls", 30000, True), start("hand", "hand", 30001, False)
            say(start="within the walls, beside the other", stages=walls.ready())
            say(start="by hand, beside the other", stages=hand.ready())
        else:
            forget_packages()
            first = start("first", "walls", 30000, True)
            say(start="first", stages=first.ready())
            first.end()
            walls = start("next", "walls", 30000, True)
            say(start="next", stages=walls.ready())
            hand = start("hand", "hand", 30001, False)
            say(start="by hand, empty home, packages in memory", stages=hand.ready())
        seen: dict[str, list[float]] = {"walls": [], "hand": []}
        engines = [("walls", walls), ("hand", hand)]
        for turn in range(options.turns + 1):
            for name, engine in engines if turn % 2 else engines[::-1]:
                figure, seconds = engine.serve(options.prompts, out)
                if turn:  # the first load of each is not its usual one
                    seen[name].append(figure)
                say(load=name, turn=turn, output_tokens_per_s=round(figure, 1), seconds=round(seconds, 2))
    finally:
        for engine in started:
            engine.end()
    middle = {name: statistics.median(figures) for name, figures in seen.items()}
    spread = {name: round(max(figures) / min(figures), 4) for name, figures in seen.items()}
    each = [round(within / by_hand, 4) for within, by_hand in zip(seen["walls"], seen["hand"])]
    say(ratio=round(middle["walls"] / middle["hand"], 4), spread=spread, ratio_by_turn=each, n=options.turns)


if __name__ == "__main__":
    main()
