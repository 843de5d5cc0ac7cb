#!/usr/bin/env python3
"""Measure a real engine through the playbooks, break what can be broken, and look at what is kept.

bench.py --inventory DIR            all cases, in order
bench.py --only sweep --only gate   those whose title holds a word
bench.py --list
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "shared"))

from hosts import ROOT, Host, Play, Wrong, check

SCHEMA = json.loads((ROOT / "schemas/run.schema.json").read_text())
# As ids: what the small tokenizer draws does not always come back as it was.
LENGTHS = {"input_len": 64, "output_len": 16, "dataset": "token-ids"}
ONE = {"concurrency": 2, "prompts": 8, **LENGTHS}
TWO = {"concurrency": 4, "prompts": 16, **LENGTHS}
# Takes a minute, so that something can be done to it.
LONG = {"concurrency": 2, "prompts": 64, **LENGTHS, "output_len": 128}


class Bench(Host):
    """The host, and the results that its measurements leave on the controller."""

    def __init__(self, inventory: Path, results: Path) -> None:
        super().__init__(inventory, "gpu-node")
        self.results = results

    def bench(self, loads: list[dict[str, Any]], *words: str, timeout: float = 400, **variables: Any) -> Play:
        return self.play("bench", *words, timeout=timeout, **self.variables(loads, **variables))

    def variables(self, loads: list[dict[str, Any]], **variables: Any) -> dict[str, Any]:
        """Answers are proved in one case, which is enough: the proof has tests of its own."""
        return {
            "sglang_bench_results_dir": str(self.results),
            "sglang_bench_loads": loads,
            "sglang_bench_prove": False,
            **variables,
        }

    def folder(self, profile: str = "cpu_demo") -> Path:
        """Of the newest run."""
        return max((self.results / profile).glob("*/run.json")).parent

    def run(self, profile: str = "cpu_demo") -> dict[str, Any]:
        """The newest run, which has to be of the form that is published."""
        run = json.loads((self.folder(profile) / "run.json").read_text())
        jsonschema.validate(run, SCHEMA)
        return run

    def state(self) -> dict[str, Any]:
        return json.loads(self.do("cat /var/lib/sglang/sglang/state.json"))

    def record(self) -> dict[str, Any]:
        """What is known of the newest deployment."""
        return json.loads(self.do("cat $(ls /var/lib/sglang/sglang/deployments/*.json | tail -n 1)"))["facts"]


def well(play: Play) -> Play:
    check(play.code == 0, f"the run ended with {play.code}:\n{play.text[-4000:]}")
    return play


Case = Callable[[Bench], str]
CASES: dict[str, Case] = {}


def case(title: str) -> Callable[[Case], Case]:
    def add(run: Case) -> Case:
        CASES[title] = run
        return run

    return add


@case("A ladder, with answers proved before and after")
def ladder(host: Bench) -> str:
    told = well(host.bench([ONE, TWO], sglang_bench_prove=True, sglang_bench_label="first")).text
    run = host.run()
    check(run["valid"] and run["finished"] and not run["problems"], f"it is not valid: {run['problems']}")
    check(run["answers"]["before"]["passed"] and run["answers"]["after"]["passed"], f"the answers: {run['answers']}")
    check(
        [rung["load"]["concurrency"] for rung in run["rungs"]] == [2, 4], "the rungs are not those that were asked for"
    )
    seeds = {rung["load"]["seed"] for rung in run["rungs"]}
    check(len(seeds) == 2, f"two rungs share a seed: {seeds}")
    for rung in run["rungs"]:
        figures, load = rung["metrics"], rung["load"]
        check(figures["output_tokens"] == load["prompts"] * load["output_len"], "output tokens do not add up")
        check(figures["cached_token_ratio"] is not None and figures["cached_token_ratio"] <= 0.01, "the cache was warm")
        seen = rung["telemetry"]
        check(seen["samples"] > 0 and seen["host"]["cpu_percent"]["mean"] > 0, f"telemetry is empty: {seen}")
        check("running" in seen["engine"], f"the engine's metrics were not read: {seen}")
        check(any("nvidia-smi" in text for text in seen["missing"]), f"a missing GPU is not told: {seen['missing']}")
        raw = gzip.decompress((host.folder() / rung["files"]["raw"]).read_bytes())
        check(json.loads(raw)["completed"] == load["prompts"], "the client's own line is not kept")
        check(
            b"t_s" in gzip.decompress((host.folder() / rung["files"]["telemetry"]).read_bytes()), "no telemetry is kept"
        )
    names = {path.name for path in host.folder().iterdir()}
    check({"run.json", "report.html", "report.md", "rungs.csv", "charts"} <= names, f"files are missing: {names}")
    check("load 2 of 2" in told and "output tok/s" in told, "progress is not shown")
    table = told[told.index("conc") :]
    check(max(len(line) for line in table.splitlines()[:4]) <= 80, "the table is wider than a terminal")
    return f"{run['rungs'][1]['metrics']['output_throughput_tokens_per_s']:.0f} output tok/s at 4 requests"


@case("In check mode nothing is measured")
def check_mode(host: Bench) -> str:
    before = sorted(host.results.glob("*/*"))
    well(host.bench([ONE], "--check", sglang_bench_prove=True))
    check(sorted(host.results.glob("*/*")) == before, "it left results")
    return "nothing"


@case("A ladder that is cut off goes on where it stopped")
def resumed(host: Bench) -> str:
    wanted = host.variables([ONE, LONG], sglang_bench_label="cut")
    play = host.start("bench", **wanted)
    play.until("load 2 of 2", 200)
    play.until("load 2 of 2 (2 at once, 64 in, 128 out): ", 60)
    play.kill()
    before = host.run()
    check(len(before["rungs"]) == 1 and before["finished"] is None, "the first load was not kept when the second began")
    began = time.monotonic()
    told = well(host.play("bench", **wanted)).told
    run = host.run()
    check("goes on with the ladder that was broken" in told, "it does not say that it goes on")
    check(re.search(r"\d %, .* output tok/s so far, .* left", told), "progress is not shown")
    check(run["id"] == before["id"] and run["finished"] and run["valid"], "it is not the same run, ended")
    check(run["rungs"][0] == before["rungs"][0], "the load that was there was measured again")
    # The engine renews what it says every 40 steps of decoding, so that a short load shows nothing.
    seen = run["rungs"][1]["telemetry"]
    check(seen["engine"]["running"]["peak"] == 2, f"two requests were running: {seen['engine']}")
    check(seen["window"]["kind"] == "steady", f"a load of a minute has a steady window: {seen['window']}")
    return f"the load under way was waited for ({time.monotonic() - began:.0f} s), the first kept"


@case("A server that dies in mid-load")
def dies(host: Bench) -> str:
    play = host.start("bench", **host.variables([LONG, ONE], sglang_bench_label="dies"))
    play.until("load 1 of 2 (2 at once, 64 in, 128 out): ", 200)
    time.sleep(15)
    host.do("systemctl kill -s KILL sglang")
    play.end(400)
    play.failed("of 2 measurements are invalid, failed or were not run")
    first, second = host.run()["rungs"]
    check(not first["valid"] and first["problems"], f"the load whose server died is not marked: {first['status']}")
    check(second["valid"], f"the load after it did not wait for the server: {second['problems']}")
    return f"{first['status']}: {first['problems'][0][:100]}"


@case("A load that the model has no room for is marked, and the others go on")
def too_long(host: Bench) -> str:
    play = host.bench(
        [{"concurrency": 1, "prompts": 2, "input_len": 40000, "output_len": 8}, ONE], sglang_bench_label="long"
    )
    check(play.code == 2, "a load that could not be measured does not fail the play")
    first, second = host.run()["rungs"]
    check(not first["valid"] and first["problems"] and second["valid"], f"{first['problems']}, {second['problems']}")
    return first["problems"][0][:110]


@case("A file of prompts, a recorded trace, and requests at a rate")
def datasets(host: Bench) -> str:
    prompts, trace = host.results / "prompts.jsonl", host.results / "trace.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Question {n}: what is {n} plus {n}?"}) + "\n" for n in range(8)))
    trace.write_text(
        "".join(
            json.dumps({"timestamp": 400 * n, "input_length": 64, "output_length": 8, "hash_ids": [n]}) + "\n"
            for n in range(6)
        )
    )
    loads = [
        {"concurrency": 2, "prompts": 8, "output_len": 8, "dataset": "prompts", "file": str(prompts)},
        {"concurrency": 4, "prompts": 6, "dataset": "trace", "file": str(trace)},
        {"concurrency": 8, "prompts": 12, "request_rate": 4.0, **LENGTHS},
    ]
    well(host.bench(loads, sglang_bench_label="datasets"))
    rungs = host.run()["rungs"]
    check([rung["metrics"]["completed"] for rung in rungs] == [8, 6, 12], "not every request was answered")
    check(rungs[0]["load"].get("file_sha256"), "the prompts' hash is not kept")
    rate = rungs[2]["metrics"]["request_throughput_per_s"]
    check(rate < 8, f"12 requests at 4 a second were done at {rate:.1f} a second")
    return f"12 requests at 4/s came at {rate:.1f}/s"


@case("nvidia-smi hangs")
def smi_hangs(host: Bench) -> str:
    host.write("/usr/local/bin/nvidia-smi", "#!/bin/sh\nexec sleep 1000")
    host.do("chmod 755 /usr/local/bin/nvidia-smi")
    try:
        well(host.bench([ONE], sglang_bench_label="hangs"))
        missing = host.run()["rungs"][0]["telemetry"]["missing"]
        check(any("nvidia-smi" in text for text in missing), f"nobody says that it hangs: {missing}")
        check(host.do("pgrep -fc '[s]leep 1000'", ok=False) == "0", "it was left behind")
    finally:
        host.do("rm -f /usr/local/bin/nvidia-smi")
    return next(text for text in missing if "nvidia-smi" in text)


@case("Results that cannot be kept")
def nowhere(host: Bench) -> str:
    (host.results / "file").write_text("in the way")
    play = host.bench([ONE], sglang_bench_results_dir=str(host.results / "file"))
    play.failed("The results cannot be kept in", "Make room, or name another sglang_bench_results_dir")
    small = host.results / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=True)
    try:
        wanted = {"sglang_bench_results_dir": str(small), "sglang_bench_label": "full"}
        (small / "filler").write_bytes(b"x" * 44 * 1024)
        play = host.bench([ONE, TWO], **wanted)
        check(play.code == 2 and "No space left" in play.told, f"a full disk is not said:\n{play.text[-2000:]}")
        (small / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=16m", str(small)], check=True)
        well(host.bench([ONE, TWO], **wanted))
        runs = sorted(small.glob("cpu_demo/*/run.json"))
        check(json.loads(runs[-1].read_text())["valid"], "with room again it is not whole")
        return f"full: said; with room {len(runs)} run(s), the last whole"
    finally:
        subprocess.run(["umount", str(small)], check=False)


@case("A server that somebody else started")
def by_url(host: Bench) -> str:
    record = host.record()
    well(
        host.bench(
            [ONE],
            sglang_bench_url=record["url"], sglang_bench_python=record["python"], sglang_bench_model_path=record["model_path"],
            sglang_bench_label="url",
        )
    )  # fmt: skip
    run = host.run("url-127.0.0.1-30000")
    check(
        run["valid"] and not run["target"]["deployed"] and not run["deployment"], "it is taken for one of the project's"
    )
    check(run["server"]["sglang"] == "0.5.23", f"its release is not known: {run['server']['sglang']}")
    check(run["server"]["arguments"].get("max_running_requests") == 32, "its arguments are not known")
    return f"SGLang {run['server']['sglang']}, {len(run['server']['arguments'])} arguments by its own word"


@case("The gate")
def gate(host: Bench) -> str:
    typo = host.bench([ONE], sglang_bench_against="cpu_demo/latst")
    check(typo.code == 2 and "begins" not in typo.text, "a name that is wrong is said after the loads")
    well(
        host.bench([ONE], sglang_bench_label="gate", sglang_bench_against="cpu_demo/latest", sglang_bench_min_ratio=0.2)
    )
    play = host.bench(
        [ONE], sglang_bench_label="gate", sglang_bench_against="cpu_demo/latest", sglang_bench_min_ratio=9
    )
    check(
        play.code == 2 and "writes less than 9 times the output tokens a second" in play.told,
        f"a run that falls behind passes the gate:\n{play.text[-2000:]}",
    )
    other = host.bench([{**ONE, "output_len": 8}], sglang_bench_against="cpu_demo/latest", sglang_bench_min_ratio=0.1)
    check(
        other.code == 2 and "cannot be held against" in other.told,
        f"another load passes the gate:\n{other.text[-2000:]}",
    )
    return "passed at 0.2, refused at 9 and for another load, and a wrong name before anything is measured"


SWEEP = {
    "sglang_sweep_variants": [
        {"name": "one-at-a-time", "args": {"max-running-requests": 1}},
        {"name": "no-cache", "args": {"disable-radix-cache": True}},
        {"name": "no-such-option", "args": {"no-such-option": 1}},
    ],
}


@case("A sweep is cut off, goes on, and names a winner")
def sweep(host: Bench) -> str:
    wanted = {**host.variables([{"concurrency": 4, "prompts": 24, **LENGTHS, "output_len": 32}]), **SWEEP}
    served = host.state()["digest"]
    play = host.start("sweep", **wanted)
    play.until("variant 2 of 4 (one-at-a-time) begins", 300)
    play.until("load 1 of 1", 300)
    play.kill()
    again = host.start("sweep", **wanted)
    again.end(900)
    well(again)
    check("goes on with the sweep that was cut off" in again.told, "it begins anew")
    check("variant 1 of 4" not in again.told, "what was measured is measured again")
    record = json.loads(max((host.results / "cpu_demo").glob("*-sweep/sweep.json")).read_text())
    check([one["status"] for one in record["variants"]] == ["measured"] * 3 + ["failed"], f"{record['variants']}")
    check("no-such-option" in record["variants"][3]["why"], f"why it failed: {record['variants'][3]['why']}")
    check(record["winner"] in ("deployed", "no-cache"), f"one request at a time has won: {record['winner']}")
    check(served == host.state()["digest"], "another deployment serves now")
    words = host.do("tr '\\0' ' ' < /proc/$(systemctl show -p MainPID --value sglang)/cmdline")
    check("--max-running-requests 32" in words, f"what runs is not what is committed: {words}")
    return f"the winner is {record['winner']}; what was deployed serves again"


@case("A sweep's winner is kept when told to")
def winner(host: Bench) -> str:
    variants = [{"name": "sixteen", "args": {"max-running-requests": 16}}]
    goal = {"figure": "output_throughput_tokens_per_s", "limits": {"ttft_ms.median": 100000}}
    wanted = {"sglang_sweep_variants": variants, "sglang_sweep_goal": goal, "sglang_sweep_keep": True}
    well(host.play("sweep", timeout=900, **host.variables([ONE]), **wanted))
    record = json.loads(max((host.results / "cpu_demo").glob("*-sweep/sweep.json")).read_text())
    expected = "16" if record["winner"] == "sixteen" else "32"
    words = host.do("tr '\\0' ' ' < /proc/$(systemctl show -p MainPID --value sglang)/cmdline")
    check(f"--max-running-requests {expected}" in words, f"the winner is {record['winner']}, and what runs is {words}")
    state = host.state()
    check(state["phase"] == "committed", f"it is not committed: {state['phase']}")
    return f"{record['winner']} is deployed"


@case("Beside bench_serving by hand")
def overhead(host: Bench) -> str:
    """One server, the same load, in turns."""
    well(host.play("deploy"))
    record = host.record()
    load = {"concurrency": 4, "prompts": 48, **LENGTHS, "output_len": 32}
    hand = (
        f"{record['python']} -m sglang.bench_serving --backend sglang --base-url {record['url']} --model {record['model_path']} "
        "--dataset-name random-ids --num-prompts 48 --max-concurrency 4 --random-input-len 64 --random-output-len 32 "
        "--random-range-ratio 1.0 --tokenize-prompt --flush-cache"
    )
    by_hand, by_playbook = [], []
    for turn in range(4):
        words = f"{hand} --seed {1000 + turn} --output-file hand.jsonl"
        host.do(f"cd /tmp && rm -f hand.jsonl && {words} >/dev/null 2>&1", timeout=300)
        by_hand.append(json.loads(host.do("cat /tmp/hand.jsonl"))["output_throughput"])
        well(host.bench([load], sglang_bench_label="overhead", sglang_bench_seed=2000 + turn))
        by_playbook.append(host.run()["rungs"][0]["metrics"]["output_throughput_tokens_per_s"])
    ratio = statistics.median(by_playbook) / statistics.median(by_hand)
    spread = max(by_hand) / min(by_hand)
    check(ratio >= 1 / spread, f"it costs: ratio {ratio:.3f}, by hand against by hand {spread:.3f}")
    return (
        f"n=4 in turns: ratio of medians {ratio:.3f}; by hand alone spreads by {spread:.3f} "
        f"({', '.join(f'{x:.0f}' for x in by_hand)} against {', '.join(f'{x:.0f}' for x in by_playbook)} output tok/s)"
    )


@case("The other release, and what differs")
def compared(host: Bench) -> str:
    well(host.play("deploy", "-e", f"@{ROOT}/group_vars/cpu_demo_origin.yml", timeout=600))
    for profile in ("cpu_demo_origin", "cpu_demo"):
        words = ["-e", f"@{ROOT}/group_vars/{profile}.yml"]
        well(host.play("deploy", *words, timeout=600))
        well(host.bench([ONE, TWO], *words, sglang_bench_repeats=3, sglang_bench_label="compared"))
        check(len(host.run(profile)["rungs"]) == 6, "three repeats of two loads are not six measurements")
    # It needs no host, so there is nothing to limit it to.
    wanted = {
        "sglang_compare_runs": ["cpu_demo_origin/latest", "cpu_demo/latest"],
        "sglang_bench_results_dir": str(host.results),
    }
    argv = host.command("compare", **wanted)
    del argv[argv.index("-l") : argv.index("-l") + 2]
    play = Play(argv)
    play.end(120)
    told = well(play).told
    check("0.5.9" in told and "0.5.23" in told, f"the releases are not told apart: {told[-3000:]}")
    check("flashinfer-cutlass-autotune" in told, "the patch that one of them has is not told")
    return "releases and the patch are named"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inventory", type=Path, default=HERE / "inventory")
    parser.add_argument("--only", action="append", help="a word of the titles of cases to run")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--results", type=Path, help="folder for the results; one that goes by default")
    options = parser.parse_args()
    chosen = {
        title: run
        for title, run in CASES.items()
        if not options.only or any(w.lower() in title.lower() for w in options.only)
    }
    if options.list:
        print("\n".join(chosen))
        return 0
    bad = 0
    with tempfile.TemporaryDirectory(dir=os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) as scratch:
        host = Bench(options.inventory, options.results or Path(scratch))
        for number, (title, run) in enumerate(chosen.items(), 1):
            print(f"[{number}/{len(chosen)}] {title} ...", flush=True)
            began = time.monotonic()
            try:
                said = run(host)
            except Wrong as error:
                bad, said = bad + 1, f"FAILED: {error}"
            except Exception:
                bad, said = bad + 1, f"FAILED: {traceback.format_exc()}"
            print(f"    {said} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} cases hold")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
