#!/usr/bin/env python3
"""What deployments, restarts and measurements cost on this machine, each against what a person would hold it against.

performance.py                      every row, on test hosts that are started and removed
performance.py --only restart       rows whose name holds a word; again for more
performance.py --keep               leave the hosts for the next run
performance.py --write              put the table into docs/performance.md
performance.py --list

Needs root (test hosts), 16 GB of memory and 30 GB of disk. What is compared runs in turns; figures are medians.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ansible.module_utils
import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "molecule/shared"))

from hosts import BIN, ROOT, Host, Wrong, check, environment

ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_diagnose, sglang_rules

FOLDER = Path("/var/tmp/sglang-bench")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sglang-rtxpro"
INVENTORY = HERE / "inventory"
PAGE = ROOT / "docs/performance.md"
BEGIN, END = "<!-- make bench -->", "<!-- end -->"
STACK = "sglang-cpu-0.5.23"
ROUTER_STACK = "sglang-router-0.3.2"
EIGHT = "gpu_nodes[0:7]"  # whose engines run at once; the other hosts are prepared only
WHEELS = "/opt/sglang/wheelhouse"
# Round trips that a deployment with nothing to change may take; tests hold it.
MOST_ROUND_TRIPS = 25
BY_HAND = "/opt/sglang/byhand"  # beside the releases, so that uv can link as it does there
BIG = "/var/lib/sglang/models/big"
PROMPTS, CONCURRENCY, INPUT, OUTPUT = 48, 4, 64, 32
LOAD = {"concurrency": CONCURRENCY, "input_len": INPUT, "output_len": OUTPUT, "dataset": "token-ids"}


class Row(NamedTuple):
    """A line of the table. `met` is None where there is no goal to meet."""

    what: str
    goal: str
    seen: str
    met: bool | None


class Timed(NamedTuple):
    """A command that went well: seconds by the clock, and of CPU (children included), what it said, MB of its largest process."""

    wall: float
    cpu: float
    text: str
    largest: float


def timed(argv: list[str]) -> Timed:
    with tempfile.TemporaryFile("w+") as out:
        began = time.monotonic()
        # As for people: Python keeps what it compiled.
        known = {name: value for name, value in environment().items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(
            argv, cwd=ROOT, env=known, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - began
        out.seek(0)
        text = out.read()
    code = os.waitstatus_to_exitcode(status)
    check(code == 0, f"`{shlex.join(argv[:6])} …` ended with {code}:\n{text[-3000:]}")
    return Timed(wall, used.ru_utime + used.ru_stime, text, used.ru_maxrss / 1024)


def turns() -> int:
    return int(os.environ["BENCH_TURNS"])


def in_turns(*commands: Callable[[], Any]) -> list[list[Any]]:
    """What each gave, turn by turn, so that what else the machine does falls on all of them."""
    rounds = [[command() for command in commands] for _ in range(turns())]
    return [list(results) for results in zip(*rounds, strict=True)]


def middle(runs: list[Timed], name: str = "wall") -> float:
    return statistics.median(getattr(run, name) for run in runs)


def play(name: str, hosts: str, *words: str, **variables: Any) -> Timed:
    argv = [str(BIN / "ansible-playbook"), "-i", str(INVENTORY), str(ROOT / f"{name}.yml"), "-l", hosts, *words]
    return timed([*argv, "-e", json.dumps(variables)] if variables else argv)


def asked(host: Host, module: str, **args: Any) -> dict[str, Any]:
    """What a module of the project says of a host."""
    argv = [str(BIN / "ansible"), "-i", str(INVENTORY), host.name, "-b", "-m", module, "-a", json.dumps(args)]
    text = timed(["env", "ANSIBLE_CALLBACK_RESULT_FORMAT=json", *argv]).text
    found: dict[str, Any] = json.loads(text[text.index("=> {") + 3 :])
    return found


def unchanged(hosts: str, *words: str, playbook: str = "deploy") -> Timed:
    done = play(playbook, hosts, *words)
    counts = re.findall(r"changed=(\d+)", done.text)
    check(
        counts and set(counts) == {"0"}, f"a deployment with nothing to change changed something:\n{done.text[-3000:]}"
    )
    return done


def environment_of(name: str, requirements: Path) -> Path:
    """Packages of a lock, in an environment that is kept for the next run."""
    folder, uv = CACHE / name, str(BIN / "uv")
    if not folder.exists():
        subprocess.run([uv, "venv", "--quiet", str(folder), "--python", sys.executable], check=True)
    sync = [uv, "pip", "sync", "--quiet", "--require-hashes", "--python", str(folder), str(requirements)]
    subprocess.run(sync, check=True)
    return folder


def round_trips(text: str) -> int:
    """Commands sent over SSH, by what `-vvv` says of each."""
    return len(re.findall(r"^<[^>]+> SSH: EXEC ", text, re.M))


class Bench:
    """The hosts. node-1 builds the release that the others share, read-only."""

    def __init__(self) -> None:
        self.one = Host(INVENTORY, "node-1")
        self._deployed: set[str] = set()

    def deployed(self, hosts: str = "node-1") -> Host:
        """Hosts that serve the profile, and were asked once more, so that every answer is kept."""
        if hosts not in self._deployed:
            play("deploy", "node-1")
            if hosts != "node-1":
                play("deploy", hosts, "-f", "2")  # an engine's start takes a core
            unchanged(hosts, "-f", "8")
            self._deployed.add(hosts)
        return self.one

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.one.do("cat $(ls /var/lib/sglang/sglang/deployments/*.json | tail -n 1)")
        )
        return found


ROWS: dict[str, Callable[[Bench], list[Row]]] = {}


def row(name: str) -> Callable[[Callable[[Bench], list[Row]]], Callable[[Bench], list[Row]]]:
    def add(run: Callable[[Bench], list[Row]]) -> Callable[[Bench], list[Row]]:
        ROWS[name] = run
        return run

    return add


# --- deployments ------------------------------------------------------------------------------------------------------


def plain_playbook() -> str:
    """60 tasks of five kinds that find everything as it is to be, as somebody writes who has no modules of his own."""
    kinds: list[dict[str, Any]] = [
        {"ansible.builtin.file": {"path": "/srv/plain/N", "state": "directory", "mode": "0755"}},
        {"ansible.builtin.copy": {"dest": "/srv/plain/N/copy", "content": "copy N\n", "mode": "0644"}},
        {
            "ansible.builtin.template": {
                "src": str(FOLDER / "plain.j2"),
                "dest": "/srv/plain/N/template",
                "mode": "0644",
            }
        },
        {"ansible.builtin.lineinfile": {"path": "/srv/plain/N/copy", "line": "line N"}},
        {"ansible.builtin.stat": {"path": "/srv/plain/N/copy"}},
    ]
    tasks = [json.loads(json.dumps(kind).replace("N", str(n))) for n in range(12) for kind in kinds]
    for number, task in enumerate(tasks):
        task["name"] = f"Task {number}"
    # copy and lineinfile keep to each other's file, so that nothing changes from the second run on.
    for task in tasks:
        if "ansible.builtin.copy" in task:
            task["ansible.builtin.copy"]["content"] += task["ansible.builtin.copy"]["content"].replace("copy", "line")
    (FOLDER / "plain.j2").write_text("{{ inventory_hostname }}\n")
    (FOLDER / "plain.yml").write_text(
        yaml.safe_dump([{"hosts": "gpu_nodes", "become": True, "gather_facts": False, "tasks": tasks}], sort_keys=False)
    )
    return str(FOLDER / "plain.yml")


@row("deploy")
def deploy(bench: Bench) -> list[Row]:
    """Nothing to change: against 60 plain tasks, and with 8 hosts against one."""
    bench.deployed()
    argv = [str(BIN / "ansible-playbook"), "-i", str(INVENTORY), plain_playbook(), "-l", "node-1"]
    timed(argv)
    check("changed=0" in timed(argv).text, "the plain playbook changes something each time")
    trips = round_trips(unchanged("node-1", "-vvv").text)
    ours, plain = in_turns(lambda: unchanged("node-1"), lambda: timed(argv))
    ratio = middle(ours) / middle(plain)
    return [
        Row(
            "a deployment with nothing to change: commands over SSH",
            f"at most {MOST_ROUND_TRIPS}",
            str(trips),
            trips <= MOST_ROUND_TRIPS,
        ),
        Row(
            f"its time against 60 unchanged tasks of a plain playbook (pipelining, same host, n={turns()} in turns)",
            "at most 0.35",
            f"{ratio:.2f} ({middle(ours):.1f} s against {middle(plain):.1f} s)",
            ratio <= 0.35,
        ),
    ]


@row("fleet")
def fleet(bench: Bench) -> list[Row]:
    bench.deployed(EIGHT)
    one, eight = in_turns(lambda: unchanged("node-1", "-f", "8"), lambda: unchanged(EIGHT, "-f", "8"))
    ratio = middle(eight, "cpu") / 8 / middle(one, "cpu")
    return [
        Row(
            "the same on 8 hosts (forks 8): the controller's CPU time a host, against one host",
            "at most 1",
            f"{ratio:.2f} ({middle(eight, 'cpu') / 8:.1f} s against {middle(one, 'cpu'):.1f} s of CPU; "
            f"{middle(eight):.0f} s against {middle(one):.0f} s by the clock)",
            ratio <= 1,
        )
    ]


@row("scale")
def scale(bench: Bench) -> list[Row]:
    """All that comes before a switch, on hosts whose releases and models are there: what docs/scale.md reckons with."""
    bench.deployed()
    play("prepare", "all", "-f", "2")  # a release's parser takes a core
    few, many = in_turns(
        lambda: unchanged("gpu_nodes[0:3]", "-f", "16", playbook="prepare"),
        lambda: unchanged("all", "-f", "16", playbook="prepare"),
    )
    return [
        Row(
            "prepare.yml with nothing to change on 16 hosts (forks 16): the controller's CPU time a host",
            "known",
            f"{middle(many, 'cpu') / 16:.1f} s, on 4 hosts {middle(few, 'cpu') / 4:.1f} s; {middle(many):.0f} s and "
            f"{middle(few):.0f} s by the clock; its largest process {middle(many, 'largest'):.0f} MB",
            None,
        )
    ]


@row("router")
def router(_bench: Bench) -> list[Row]:
    """Before stand-ins for workers: what docs/scale.md reckons gateways with."""
    requirements = ROOT / f"stacks/{ROUTER_STACK}/requirements-{sys.version_info.major}.{sys.version_info.minor}.txt"
    python = environment_of("router", requirements) / "bin/python"
    seen = {n: json.loads(timed([str(python), str(HERE / "router.py"), str(n)]).text) for n in (4, 32, 256)}

    def each(name: str, factor: float, digits: int) -> str:
        return ", ".join(f"{one[name] * factor:.{digits}f}" for one in seen.values())

    return [
        Row(
            "the router before 4, 32, 256 workers (stand-ins that answer at once): CPU time a request, a streamed token; at rest",
            "known",
            f"{each('cpu_s_a_request', 1e3, 2)} ms, {each('cpu_s_a_token', 1e6, 0)} µs; {each('cpu_at_rest', 100, 1)} % of a core, "
            f"{each('memory_mb', 1, 0)} MB",
            None,
        )
    ]


@row("pyinfra")
def pyinfra(bench: Bench) -> list[Row]:
    """The same end state by pyinfra, which looks at less."""
    host = bench.deployed()
    program = environment_of("pyinfra", HERE / "pyinfra.txt") / "bin/pyinfra"
    facts = bench.manifest()["facts"]
    folder = FOLDER / "pyinfra"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()

    def taken(path: str) -> str:
        copy = folder / path.strip("/").replace("/", "_")
        copy.write_text(host.do(f"cat {path}; echo .").removesuffix("."))
        return str(copy)

    units = [f"/etc/systemd/system/sglang-supervise.{kind}" for kind in ("service", "timer")]
    told = {
        "lock": str(ROOT / f"stacks/{STACK}/requirements-3.11.txt"),
        "uv": host.do("ls /opt/sglang/uv/uv-*"),
        "release": facts["release"],
        "wheels": WHEELS,
        "model_path": facts["model_path"],
        "model_files": host.do(f"ls {facts['model_path']}").split(),
        "unit": taken("/etc/systemd/system/sglang.service"),
        "files": {
            path: taken(path)
            for path in [*units, "/etc/sglang/sglang/supervise.py", "/etc/sglang/sglang/sglang_node.py"]
        },
        "url": facts["url"],
    }
    (folder / "told.json").write_text(json.dumps(told))
    data = [f"told={folder / 'told.json'}", f"ssh_key={FOLDER / 'id_ed25519'}", "ssh_strict_host_key_checking=no"]
    argv = [str(program), "-y", "--user", "root", host.address, str(HERE / "deploy_pyinfra.py")]
    argv += [word for one in data for word in ("--data", one)]
    timed(argv)
    ours, theirs = in_turns(lambda: unchanged("node-1"), lambda: timed(argv))
    ratio = middle(ours) / middle(theirs)
    return [
        Row(
            f"the same end state by pyinfra 3.10 (tests/bench/deploy_pyinfra.py, n={turns()} in turns)",
            "not slower",
            f"{ratio:.1f} times its time ({middle(ours):.1f} s against {middle(theirs):.1f} s): see below",
            ratio <= 1,
        )
    ]


@row("build")
def build(bench: Bench) -> list[Row]:
    """A release from a wheelhouse and a warm cache, against uv by hand with the same lock, hashes and compiled bytecode."""
    host = bench.deployed()
    release = bench.manifest()["facts"]["release"]
    uv = host.do("ls /opt/sglang/uv/uv-*")
    hand = (
        f"export UV_CACHE_DIR=/opt/sglang/uv/cache; {uv} venv -q --python python3.11 {BY_HAND} && "
        f"UV_COMPILE_BYTECODE_TIMEOUT=600 {uv} pip sync -q --no-config --offline --require-hashes "
        f"--compile-bytecode --no-index --find-links {WHEELS} --python {BY_HAND} {release}/requirements.txt"
    )
    page = FOLDER / "build.yml"
    wanted = {"name": "Build", "hosts": "gpu_nodes", "become": True}
    roles = [{"import_role": {"name": "sglang_env"}}]
    page.write_text(yaml.safe_dump([{**wanted, "gather_facts": False, "tasks": roles}]))
    other = {"sglang_env_content": ["another release than the one that serves"], "sglang_env_watch": []}
    # One that is built and not sealed would be found, and built no more.
    unsealed = (
        'for mark in /opt/sglang/releases/*/incomplete; do [ ! -e "$mark" ] || rm -rf "${mark%/incomplete}"; done'
    )

    def by_hand() -> float:
        host.do(f"rm -rf {BY_HAND}")
        began = time.monotonic()
        host.do(hand, timeout=580)
        return time.monotonic() - began

    def by_module() -> float:
        host.do(unsealed)
        argv = [
            str(BIN / "ansible-playbook"),
            "-i",
            str(INVENTORY),
            str(page),
            "-l",
            "node-1",
            "-e",
            json.dumps(other),
            "-v",
        ]
        done = timed(argv)
        seconds = re.search(r"seconds:\s+environment: ([\d.]+)\s+install: ([\d.]+)", done.text)
        check(seconds, f"the role built nothing:\n{done.text[-2000:]}")
        return float(seconds[1]) + float(seconds[2]) if seconds else 0.0

    by_hand()
    theirs, ours = in_turns(by_hand, by_module)
    host.do(f"rm -rf {BY_HAND}; {unsealed}")
    ratio = statistics.median(ours) / statistics.median(theirs)
    return [
        Row(
            f"building a release, cache and wheelhouse warm, against `uv pip sync` by hand (n={turns()} in turns)",
            "at most 1.2",
            f"{ratio:.2f} ({statistics.median(ours):.0f} s against {statistics.median(theirs):.0f} s)",
            ratio <= 1.2,
        )
    ]


# --- starts -----------------------------------------------------------------------------------------------------------

DROP = """
import glob, os, sys
for pattern in sys.argv[1:]:
    for path in glob.glob(pattern, recursive=True):
        if os.path.isfile(path) and not os.path.islink(path):
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
"""


def drop(host: Host, *patterns: str) -> None:
    """Take files out of the page cache, as after a boot."""
    host.do(f"sync; python3 - {' '.join(shlex.quote(one) for one in patterns)} <<'END'\n{DROP}\nEND")


def stages(host: Host) -> dict[str, float]:
    """Wait until the server of a unit that was just started answers; seconds from its start to each stage."""
    told = asked(host, "sglang_ready", unit="sglang.service", url="http://127.0.0.1:30000", timeout=300)
    return {stage["name"]: stage["seconds"] for stage in told["stages"]}


STEPS = {
    "imports and arguments": ("process started", "arguments resolved"),
    "scheduler process": ("arguments resolved", "weights loading"),
    "weights": ("weights loading", "weights loaded"),
    "memory, kernels, HTTP": ("weights loaded", "ready"),
}


def by_step(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[end] - run[begin] for run in runs) for name, (begin, end) in STEPS.items()}


@row("restart")
def restart(bench: Bench) -> list[Row]:
    """The first start of a release on a node (nothing in the page cache, a home of its own that is empty), and the next ones."""
    host = bench.deployed()
    release = bench.manifest()["facts"]["release"]

    def cold() -> dict[str, float]:
        host.do("systemctl stop sglang; rm -rf /var/lib/sglang/sglang/home")
        drop(host, f"{release}/venv/lib/**/*", "/var/lib/sglang/models/tiny-glm4-moe/*", "/usr/lib/python3.11/**/*")
        host.do("systemctl start sglang")
        return stages(host)

    def warm() -> dict[str, float]:
        host.do("systemctl restart sglang")
        return stages(host)

    first, again = in_turns(cold, warm)
    kept = host.do("cd /var/lib/sglang/sglang/home && find . -type f | head -n 20")
    a, b = by_step(first), by_step(again)
    both = ", ".join(f"{name} {a[name]:.1f} and {b[name]:.1f} s" for name in STEPS)
    ratio = statistics.median(run["ready"] for run in again) / statistics.median(run["ready"] for run in first)
    return [
        Row(
            f"a restart against the first start, CPU engine (n={turns()} in turns)",
            "by stage",
            f"{ratio:.2f}: {both}; files in the home that the next start reads: {len(kept.split()) or 'none'}",
            None,
        )
    ]


@row("weights")
def weights(bench: Bench) -> list[Row]:
    """4 GB in four shards: from a cold page cache, read ahead beside the switch, and warm; the loader with threads and without."""
    host = bench.deployed()
    release = bench.manifest()["facts"]["release"]
    host.write("/tmp/make_big_model.py", (HERE / "make_big_model.py").read_text())
    host.do(
        f"test -e {BIG}/model.safetensors.index.json || {{ rm -rf {BIG}; {release}/venv/bin/python /tmp/make_big_model.py "
        f"/var/lib/sglang/models/tiny-glm4-moe {BIG} 4; }}",
        timeout=580,
    )
    number = iter(range(1, 100))

    def start(cold: bool, ahead: bool, threads: bool) -> Callable[[], float]:
        def run() -> float:
            if cold:
                drop(host, f"{BIG}/*.safetensors")
            overlay: dict[str, Any] = {"random-seed": next(number)}
            if not threads:
                overlay["model-loader-extra-config"] = '{"enable_multithread_load": false}'
            told = play(
                "deploy",
                "node-1",
                "-v",
                sglang_model_path=BIG,
                sglang_model_generator="",
                sglang_server_read_ahead=ahead,
                sglang_server_args_overlay=overlay,
            ).text
            check(
                f"started: {str(cold and ahead).lower()}" in told or not ahead, f"read ahead otherwise:\n{told[-3000:]}"
            )
            seen = {stage["name"]: stage["seconds"] for stage in bench.manifest()["proof"]["stages"]}
            return float(seen["weights loaded"] - seen["weights loading"])

        return run

    cold, ahead, warm, one = in_turns(
        start(True, False, True), start(True, True, True), start(False, False, True), start(True, False, False)
    )
    bench._deployed.clear()
    bench.deployed()
    c, a, w, o = (statistics.median(each) for each in (cold, ahead, warm, one))
    return [
        Row(
            f"loading 4 GB of weights (4 shards): read ahead beside the switch, against a cold page cache (n={turns()} in turns)",
            "faster",
            f"{a:.1f} s against {c:.1f} s; all in memory before: {w:.1f} s",
            a < c,
        ),
        Row(
            f"the engine's loader with a thread a shard, against one thread, from a cold page cache (n={turns()} in turns)",
            "known",
            f"{c:.1f} s against {o:.1f} s",
            None,
        ),
    ]


# --- measuring --------------------------------------------------------------------------------------------------------


def served(host: Host, facts: dict[str, Any], seed: int) -> float:
    """Output tokens per second by the client itself, started by hand on the node."""
    argv = (
        f"{facts['python']} -m sglang.bench_serving --backend sglang --base-url {facts['url']} --model {facts['model_path']} "
        f"--dataset-name random-ids --num-prompts {PROMPTS} --max-concurrency {CONCURRENCY} "
        f"--random-input-len {INPUT} --random-output-len {OUTPUT} --random-range-ratio 1.0 --tokenize-prompt "
        f"--flush-cache --seed {seed} --output-file hand.jsonl"
    )
    host.do(f"cd /tmp && rm -f hand.jsonl && {argv} >/dev/null 2>&1", timeout=300)
    return float(json.loads(host.do("cat /tmp/hand.jsonl"))["output_throughput"])


def spread(values: list[float]) -> float:
    return max(values) / min(values)


def within(ours: list[float], theirs: list[float]) -> tuple[bool, str]:
    """Whether a median lies within the spread of what it is held against, to either side, and the figures."""
    ratio = statistics.median(ours) / statistics.median(theirs)
    text = f"{ratio:.2f} (n={len(ours)} in turns; by hand alone {spread(theirs):.2f} between least and greatest)"
    return 1 / spread(theirs) <= ratio <= spread(theirs), text


@row("engine")
def engine(bench: Bench) -> list[Row]:
    """The same command line under the unit with its sandbox, and in a shell."""
    host = bench.deployed()
    facts = bench.manifest()["facts"]
    seeds = iter(range(5000, 6000))
    environment = " ".join(shlex.quote(f"{name}={value}") for name, value in facts["environment"].items())
    shell = (
        f"systemctl stop sglang; cd /tmp; setpriv --reuid sglang --regid sglang --clear-groups env -i HOME=/tmp/byhand "
        f"PATH={Path(facts['python']).parent}:/usr/bin:/bin {environment} {shlex.join(facts['argv'])} "
        ">/tmp/byhand.log 2>&1 & echo $!"
    )
    ask = f"python3 -c \"import urllib.request as u; u.urlopen('{facts['url']}/health', timeout=5)\" 2>/dev/null"
    healthy = f"for i in $(seq 300); do {ask} && exit 0; sleep 0.5; done; exit 1"

    def by_unit() -> float:
        host.do("systemctl restart sglang")
        host.do(healthy, timeout=200)
        served(host, facts, next(seeds))  # the first load after a start is not the engine's usual one
        return served(host, facts, next(seeds))

    def by_hand() -> float:
        host.do("mkdir -p /tmp/byhand && chown sglang /tmp/byhand")
        pid = host.do(shell)
        try:
            host.do(healthy, timeout=200)
            served(host, facts, next(seeds))
            return served(host, facts, next(seeds))
        finally:
            host.do(
                f"kill {pid}; sleep 1; pkill -KILL -f '[s]glang::' ; while kill -0 {pid} 2>/dev/null; do sleep 0.2; done; true"
            )

    theirs, ours = in_turns(by_hand, by_unit)
    met, text = within(ours, theirs)
    return [
        Row(
            "the engine's throughput under the unit and its sandbox, against by hand in a shell",
            "within the spread",
            text,
            met,
        )
    ]


@row("bench")
def measure(bench: Bench) -> list[Row]:
    """bench.yml against the same load by hand; and what of a rung is neither warm-up nor load."""
    host = bench.deployed()
    facts = bench.manifest()["facts"]
    seeds = iter(range(7000, 8000))
    results = FOLDER / "results"
    shutil.rmtree(results, ignore_errors=True)

    def by_playbook(loads: int = 1) -> dict[str, Any]:
        """The run, with the seconds that the playbook took."""
        told = [{**LOAD, "prompts": PROMPTS + n} for n in range(loads)]  # two loads of one run differ
        done = play(
            "bench", "node-1", sglang_bench_results_dir=str(results), sglang_bench_loads=told, sglang_bench_prove=False,
            sglang_bench_seed=next(seeds),
        )  # fmt: skip
        newest = max((results / "cpu_demo").glob("*/run.json"), key=lambda path: path.stat().st_mtime)
        return {**json.loads(newest.read_text()), "wall": done.wall}

    def by_hand() -> tuple[float, float]:
        """Output tokens per second, and seconds that the client took beside its load: imports, warm-up."""
        began = time.monotonic()
        throughput = served(host, facts, next(seeds))
        return throughput, time.monotonic() - began - PROMPTS * OUTPUT / throughput

    def load_seconds(run: dict[str, Any]) -> float:
        return sum(one["metrics"]["duration_s"] for one in run["rungs"])

    hand, runs, longer = in_turns(by_hand, by_playbook, lambda: by_playbook(3))
    theirs = [throughput for throughput, _ in hand]
    ours = [run["rungs"][0]["metrics"]["output_throughput_tokens_per_s"] for run in runs]
    met, text = within(ours, theirs)
    beside = statistics.median(
        (three["wall"] - load_seconds(three) - one["wall"] + load_seconds(one)) / 2
        for one, three in zip(runs, longer, strict=True)
    )
    client = statistics.median(seconds for _, seconds in hand)
    return [
        Row("`bench.yml` against `bench_serving` by hand: output throughput", "no difference", text, met),
        Row(
            "a rung's time beyond the client's own (its imports, warm-up and load)",
            "less than 5 s",
            f"{max(0.0, beside - client):.1f} s; beside its load a rung takes {beside:.1f} s, the client by hand {client:.1f} s",
            beside - client < 5,
        ),
    ]


# --- logs -------------------------------------------------------------------------------------------------------------


def batch(number: int) -> bytes:
    """What a server at work says, as SGLang 0.5.9 and later do."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1769647718 + number // 4))
    kinds = [
        f"[{moment} TP0] Decode batch, #running-req: {number % 256}, #token: {number % 180191}, token usage: 0.{number % 97:02d}, "
        f"cuda graph: True, gen throughput (token/s): {1000 + number % 700}.{number % 89:02d}, #queue-req: {number % 31}, ",
        f'[{moment}] INFO:     10.0.0.{number % 250}:{20000 + number % 40000} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        f"[{moment} TP0] Prefill batch, #new-seq: {number % 8}, #new-token: {number % 8192}, #cached-token: {number % 4096}, "
        f"token usage: 0.{number % 97:02d}, #running-req: {number % 256}, #queue-req: {number % 31}, ",
        f'[{moment}] INFO:     10.0.0.{number % 250}:{20000 + number % 40000} - "GET /health HTTP/1.1" 200 OK',
    ]
    return kinds[number % len(kinds)].encode() + b"\n"


def long_logs(size: int) -> dict[str, Callable[[], Iterator[bytes]]]:
    """So many bytes each: a start, days of service and an end; and a server that starts again and again."""
    recorded = {path.stem: path.read_bytes() for path in sorted((ROOT / "tests/unit/data/sglang_log").glob("*.log"))}

    def one_start() -> Iterator[bytes]:
        begin, end = recorded["sm120-k2-thinking-5816"], recorded["sm120-out-of-resources"]
        yield begin
        left, number = size - len(begin) - len(end), 0
        while left > 0:
            piece = b"".join(batch(number + n) for n in range(1000))
            left, number = left - len(piece), number + 1000
            yield piece
        yield end[end.rindex(b"Traceback") :]

    def many_starts() -> Iterator[bytes]:
        once = b"".join(recorded.values())
        for _ in range(size // len(once) + 1):
            yield once

    return {"a start, days of service, an end": one_start, "thousands of starts": many_starts}


@row("logs")
def logs(bench: Bench) -> list[Row]:
    """200 MB by the doctor's own scan, and by the modules from a host's journal."""
    rows = []
    path = FOLDER / "long.log"
    for name, made in long_logs(200 << 20).items():
        with path.open("wb") as file:
            file.writelines(made())
        code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import performance; performance.scan({str(path)!r})"
        seconds, peak = json.loads(timed([sys.executable, "-c", code]).text.splitlines()[-1])
        rows.append(
            Row(
                f"doctor: 200 MB, {name}",
                "under 10 s, under 200 MB",
                f"{seconds:.1f} s, {peak} MB",
                seconds < 10 and peak < 200,
            )
        )
    # journalctl puts some 45 bytes before each line.
    with path.open("wb") as file:
        file.writelines(long_logs(145 << 20)["a start, days of service, an end"]())
    rows += from_journal(bench.deployed(), path)
    path.unlink()
    return rows


def scan(path: str) -> None:
    """In a process of its own, for its memory: prints seconds of CPU and the peak in MB."""
    wanted = sglang_diagnose.signatures(sglang_rules.load(str(ROOT / "rules")))
    began = time.process_time()
    with open(path, "rb") as file:
        sglang_diagnose.scan(file, wanted)
    print(json.dumps([time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024]))


def from_journal(host: Host, path: Path) -> list[Row]:
    """The same text as the journal of a unit, read by the module that a deployment runs."""
    with path.open("rb") as file:
        subprocess.run([*host.ssh, "cat > /var/tmp/long.log"], stdin=file, check=True)
    # Test hosts keep their journal in memory, which has no room for this, and it comes faster than a server says it.
    host.write("/etc/systemd/journald.conf.d/bench.conf", "[Journal]\nStorage=persistent\nRateLimitIntervalSec=0")
    host.do("mkdir -p /var/log/journal && systemctl restart systemd-journald && journalctl --flush")
    host.do(
        "systemctl reset-failed long 2>/dev/null; systemd-run --quiet --unit=long --property=LogRateLimitIntervalSec=0 "
        "--remain-after-exit sh -c 'cat /var/tmp/long.log' && "
        'until [ "$(systemctl show -p SubState --value long)" = exited ]; do sleep 1; done; journalctl --sync',
        timeout=400,
    )
    told = asked(host, "sglang_evidence", unit="long.service")
    host.do("systemctl stop long; rm -f /var/tmp/long.log; journalctl --rotate --vacuum-size=50M 2>/dev/null; true")
    read = told["log"]["bytes"] / 2**20
    check(read > 190, f"the journal gave {read:.0f} MB of 200: it was cut")
    return [
        Row(
            f"evidence: {read:.0f} MB of a host's journal, journalctl's own time included",
            "under 10 s",
            f"{told['seconds']:.1f} s, {told['log']['lines']:,} lines",
            told["seconds"] < 10,
        )
    ]


# --- the table --------------------------------------------------------------------------------------------------------


def table(rows: list[Row]) -> str:
    word = {True: "yes", False: "**no**", None: ""}
    lines = ["| what | goal | seen | met |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {one.what} | {one.goal} | {one.seen} | {word[one.met]} |" for one in rows)])


def machine() -> str:
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    return (
        f"{os.cpu_count()} cores{f' ({model[1]})' if model else ''}, {int(memory[1]) >> 20 if memory else '?'} GB, "
        f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}; other work may have shared them"
    )


def kept(rows: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """These rows, and those of earlier runs on these hosts, in their order."""
    path = FOLDER / "rows.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known |= rows
    path.write_text(json.dumps(known))
    return {name: [Row(*one) for one in known[name]] for name in ROWS if name in known}


def write(rows: list[Row]) -> None:
    page = PAGE.read_text()
    head, rest = page.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    PAGE.write_text(f"{head}{BEGIN}\nMade by `make bench` on {machine()}.\n\n{table(rows)}\n{END}{tail}")


@contextlib.contextmanager
def hosts(keep: bool) -> Iterator[Bench]:
    (FOLDER / "opt").mkdir(parents=True, exist_ok=True)
    argv = [str(BIN / "ansible-playbook"), "-i", str(INVENTORY)]
    timed([*argv, str(ROOT / "molecule/shared/create.yml")])
    try:
        yield Bench()
    finally:
        if not keep:
            timed([*argv, str(ROOT / "molecule/shared/destroy.yml")])
            shutil.rmtree(FOLDER, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="a word of the names of rows to run")
    parser.add_argument("--keep", action="store_true", help="leave the hosts, and use those that were left")
    parser.add_argument("--turns", type=int, default=3, help="how often each of two that are compared is run (3)")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/performance.md, rows that --keep kept too"
    )
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = {name: run for name, run in ROWS.items() if not options.only or any(w in name for w in options.only)}
    if options.list or not chosen:
        print("\n".join(ROWS))
        return 0
    os.environ.update(
        MOLECULE_EPHEMERAL_DIRECTORY=str(FOLDER), MOLECULE_PROJECT_DIRECTORY=str(ROOT),
        BENCH_TURNS=str(options.turns), TESTHOSTS_STATE=str(FOLDER / "hosts"), TESTHOSTS_BRIDGE="sgbn0", TESTHOSTS_NET="10.213.29",
    )  # fmt: skip
    rows: dict[str, list[Row]] = {}
    bad = False
    with hosts(options.keep) as bench:
        for number, (name, run) in enumerate(chosen.items(), 1):
            print(f"[{number}/{len(chosen)}] {name} ...", flush=True)
            began = time.monotonic()
            try:
                rows[name] = run(bench)
            except Wrong as error:
                bad = True
                print(f"    FAILED: {error}", flush=True)
            except Exception:
                bad = True
                print(f"    FAILED: {traceback.format_exc()}", flush=True)
            for one in rows.get(name, []):
                met = "" if one.met is None else ", met" if one.met else ", NOT met"
                print(f"    {one.what}: {one.seen} (goal: {one.goal}{met})")
            print(f"    ({time.monotonic() - began:.0f} s)", flush=True)
        told = [one for made in kept(rows).values() for one in made]
    print(table(told))
    if options.write and not bad:
        write(told)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
