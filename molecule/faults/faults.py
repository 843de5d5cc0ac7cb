#!/usr/bin/env python3
"""Do to a real host with the real engine what goes wrong on nodes, and see what it costs: time to serving again, requests lost.

Every case begins and ends with a host that serves what is committed; a case that ends otherwise has failed. While a case runs,
clients send short requests and long ones through the front. A request is lost when it was taken in and no whole answer came; one
that was told to come back (503 with Retry-After, or nobody listening) was refused.

    faults.py --inventory DIR            all cases, in order
    faults.py --only "hang" --only shm   those whose title holds a word
    faults.py --list
    faults.py --kept FILE --write docs/reliability.md   the table, once all passed; what passed before is not done again
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "shared"))

from hosts import Host, Play, Wrong, check
from traffic import Traffic, ask

HOST = "gpu-node"
STATE = "/var/lib/sglang/sglang"


# --- the host ---------------------------------------------------------------------------------------------------------


class Node(Host):
    """The host with a front before its server, and what it is known to serve."""

    def __init__(self, inventory: Path) -> None:
        super().__init__(inventory, HOST)
        self.port = self.facts.get("sglang_server_front_port", 8000)
        self.keys = self.facts["sglang_server_front_keys"]
        self.same: dict[str, Any] = {}

    def boot_id(self) -> str:
        return self.do("cat /proc/sys/kernel/random/boot_id", ok=False)

    # --- what it serves

    def state(self) -> dict[str, Any]:
        return json.loads(self.do(f"cat {STATE}/state.json"))

    def pid(self) -> int:
        return int(self.do("systemctl show -p MainPID --value sglang"))

    def running(self) -> str:
        """Digest of the deployment whose process runs."""
        return self.do(
            "tr '\\0' '\\n' < /proc/$(systemctl show -p MainPID --value sglang)/environ | sed -n 's/^SGLANG_DEPLOYMENT=//p'",
            ok=False,
        )

    def committed(self) -> str:
        """Id of the deployment that is committed."""
        state = self.state()
        return str(state.get("deployment") or state.get("before"))

    def manifest(self) -> dict[str, Any]:
        """Of the deployment that is committed."""
        return json.loads(self.do(f"cat {STATE}/deployments/{self.committed()}.json"))

    def answers(self) -> bool:
        return ask(self, tokens=4).kind == "answered"

    def serving(self, timeout: float = 120) -> float:
        return self.wait(self.answers, "the front answers", timeout)

    # --- playbooks

    def deployed(self, *words: str, **variables: Any) -> Play:
        """A deployment that has to succeed: what is committed already, unless variables say otherwise."""
        variables = {**self.same, **variables}
        run = self.play("deploy", *words, **variables)
        check(run.code == 0, f"the deployment failed:\n{run.text[-3000:]}")
        self.keep(variables)
        return run

    def keep(self, variables: dict[str, Any]) -> None:
        """Remember what is committed, so that the next case can deploy the same or another."""
        self.same = {
            name: variables[name] for name in ("sglang_server_args_overlay", "sglang_env_content") if name in variables
        }

    def other(self) -> dict[str, Any]:
        """Variables of another deployment than the one that is committed: one of two, so that the release is asked twice."""
        former = self.same.get("sglang_server_args_overlay", {}).get("max-running-requests")
        return {**self.same, "sglang_server_args_overlay": {"max-running-requests": 12 if former == 11 else 11}}

    def fault(self, name: str) -> dict[str, Any]:
        """Variables of one whose engine has a fault (molecule/faults/injector/sitecustomize.py)."""
        environment = {"PYTHONPATH": "/srv/injector", "SGLANG_TEST_FAULT": name}
        return {**self.other(), "sglang_server_environment_overlay": environment}


# --- cases ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Case:
    """`may_lose`: whether requests that the engine had in hand may go with it; else one that is lost fails the case."""

    title: str
    run: Callable[[Node], str]
    may_lose: bool = False
    traffic: bool = True


CASES: list[Case] = []


def case(title: str, **options: bool) -> Callable[[Callable[[Node], str]], Callable[[Node], str]]:
    def add(run: Callable[[Node], str]) -> Callable[[Node], str]:
        CASES.append(Case(title, run, **options))
        return run

    return add


BACK = "was put back and serves again"
SEEN = "seen by the proof, put back; no client met it"


@contextlib.contextmanager
def full_state(node: Node, free_kib: int = 0) -> Iterator[None]:
    """A disk of its own under the server's record, with what is there and so much room; full without any."""
    try:
        node.do(
            f"""set -e
            rm -rf /srv/kept && mkdir -p /srv/kept
            tar -C {STATE} --exclude=./home -cf - . | tar -C /srv/kept -xf -
            mount -t tmpfs -o size=$(( $(du -sk /srv/kept | cut -f1) + 64 + {free_kib} ))k,mode=755 tmpfs {STATE}
            tar -C /srv/kept -cf - . | tar -C {STATE} -xf -
            mkdir -p {STATE}/home && chown sglang:sglang {STATE}/home"""
        )
        if not free_kib:
            fill(node, STATE)
        yield
    finally:
        node.do(f"umount -l {STATE}")


def fill(node: Node, path: str) -> None:
    node.do(f"dd if=/dev/zero of={path}/.filler bs=4k 2>/dev/null", ok=False)


# Before the switch: what serves must not notice.


@case("A patch that does not fit")
def failed_patch(node: Node) -> str:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "does-not-fit.yml").write_text(yaml.safe_dump(PATCH))
        run = node.play(
            "deploy", sglang_patch_dir=folder, sglang_patch_patches=["does-not-fit"], sglang_patch_strict=True
        )
    run.failed("does-not-fit")
    return "refused in the new release; what runs was not touched"


PATCH = {
    "name": "does-not-fit",
    "package": "sglang",
    "file": "sglang/version.py",
    "why": "Its place is in no release: how that is refused.",
    "source": ["https://github.com/sgl-project/sglang"],
    "proof": "It is refused.",
    "tried": ["0.5.23"],
    "edits": [{"replace": {"before": "this text is in no file\n", "after": "nor this\n"}}],
}


@case("A wheel whose hash is not the lock's")
def failed_hash(node: Node) -> str:
    stacks = HERE.parent / "refusals/stacks"
    run = node.play(
        "deploy",
        sglang_env_stack="tiny-altered",
        sglang_env_stacks_dir=str(stacks),
        sglang_env_wheelhouse="",
        sglang_model_generator="",
    )
    run.failed("ash mismatch")
    return "refused while the release is built; what runs was not touched"


@case("Disk full while the release is built")
def full_release(node: Node) -> str:
    node.do("mount -t tmpfs -o size=2m,mode=755 tmpfs /opt/sglang/releases")
    try:
        run = node.play(
            "deploy", gpu_preflight_min_free_mib=0, **{**node.same, "sglang_env_content": ["another release"]}
        )
    finally:
        node.do("umount -l /opt/sglang/releases")
    run.failed("No space left on device")
    return "refused; nothing half built is left"


@case("Disk full while the model is brought")
def full_model(node: Node) -> str:
    node.do("mkdir -p /srv/small && mount -t tmpfs -o size=1m,mode=755 tmpfs /srv/small")
    try:
        run = node.play("deploy", gpu_preflight_min_free_mib=0, sglang_model_path="/srv/small/model", **node.same)
    finally:
        node.do("umount -l /srv/small")
    run.failed("No space left on device")
    return "refused; what runs was not touched"


@case("Disk full before the switch")
def full_before(node: Node) -> str:
    with full_state(node):
        run = node.play("deploy", gpu_preflight_min_free_mib=0, **node.other())
    run.failed("No space left on device")
    return "refused before the server is stopped"


@case("Disk full between switch and commit")
def full_commit(node: Node) -> str:
    with full_state(node, free_kib=512):
        run = node.start("deploy", gpu_preflight_min_free_mib=0, **node.other())
        run.until("Wait until the model answers")
        fill(node, STATE)
        run.end()
    run.failed("No space left on device", BACK)
    return "the last deployment was put back, though its record could not be written"


# Engines with a fault (molecule/faults/injector): title, the fault, what the run says, what happened.
FAULTY = [
    ("A start that crashes at once", "crash_at_import", "died after", "told at once, put back"),
    (
        "A start that crashes after the weights are loaded",
        "crash_after_load",
        "died after",
        "told with its stage, put back",
    ),
    ("A server that crashes when it is ready", "crash_after_ready", "", "seen by the proof, put back"),
    (
        "A server that hangs when it is ready",
        "hang_after_ready",
        "",
        "given up after sglang_server_proof_timeout, put back",
    ),
    ("Garbage: one token for ever", "constant_token", "repetition", SEEN),
    ("Not a number in the logits", "nan_logits", "", SEEN),
    ("Answers that are right alone, and mixed up in a batch", "batch_mixup", "batch", SEEN),
]


def faulty(fault: str, says: str, happened: str) -> Callable[[Node], str]:
    def run(node: Node) -> str:
        node.play("deploy", **node.fault(fault)).failed(says, BACK)
        return happened

    return run


for title, *about in FAULTY:
    case(title)(faulty(*about))


# The start.


@case("A start that hangs")
def hang_at_start(node: Node) -> str:
    run = node.play("deploy", sglang_server_start_timeout=40, **node.fault("hang_at_start"))
    run.failed("is not ready after 40 s", BACK)
    return "given up after sglang_server_start_timeout, put back"


@case("The port is taken between check and start")
def port_taken(node: Node) -> str:
    node.write("/srv/squatter.py", SQUATTER)
    node.do("systemd-run --unit=squatter --collect python3 /srv/squatter.py 30000 45")
    run = node.play("deploy", **node.other())
    run.failed()
    seconds = node.serving(180)
    return f"the last deployment came back by itself {seconds:.0f} s after the run had failed, once the port was free"


# Waits for the engine to leave the port and takes it, as somebody else's program that was started at the wrong moment.
SQUATTER = """
import socket, sys, time
port, seconds = int(sys.argv[1]), float(sys.argv[2])
while True:
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that ended a moment ago are no obstacle
    try:
        s.bind(("127.0.0.1", port))
        break
    except OSError:
        s.close()
        time.sleep(0.01)
s.listen()
time.sleep(seconds)
"""


# The proof.


@case("Wrong answers")
def wrong_answers(node: Node) -> str:
    question = {"ask": "What is 17 + 25?", "expect": r"\b42\b", "max_tokens": 16}
    run = node.play("deploy", sglang_server_questions=[question], **node.other())
    run.failed("questions", BACK)
    return "a known question was answered wrong: put back"


# By hand.


@case("Unit edited by hand, and a drop-in")
def edited(node: Node) -> str:
    node.do(
        """set -e
        sed -i -E 's/--max-running-requests [0-9]+/--max-running-requests 7/' /etc/systemd/system/sglang.service
        mkdir -p /etc/systemd/system/sglang.service.d
        printf '[Service]\\nNice=5\\n' > /etc/systemd/system/sglang.service.d/nice.conf
        systemctl daemon-reload"""
    )
    status = node.play("status")
    check(
        "drop-in" in status.told and "sglang.service" in status.told,
        f"status.yml does not see it:\n{status.text[-2000:]}",
    )
    node.deployed()
    kept = node.do(f"cat {STATE}/aside/*/sglang.service {STATE}/aside/*/nice.conf")
    check("requests 7" in kept and "Nice=5" in kept, "what was edited by hand is lost")
    shown = node.do("systemctl show -p DropInPaths,ExecStart sglang; rm -rf " + STATE + "/aside")
    check("nice.conf" not in shown and "requests 7" not in shown, f"the unit is not as declared: {shown}")
    return "as declared again; what was edited is kept in aside/"


@case("Unit masked by hand")
def masked(node: Node) -> str:
    node.do("ln -sf /dev/null /etc/systemd/system/sglang.service && systemctl daemon-reload && systemctl stop sglang")
    node.deployed()
    return "the next deployment unmasks and starts it"


@case("Release of the last deployment deleted by hand, and the new one fails")
def deleted(node: Node) -> str:
    node.deployed(sglang_env_content=["a release that is going to be deleted"])
    older = node.do("ls -d /opt/sglang/releases/*/ | wc -l")
    check(older == "2", f"expected two releases on the node, found {older}")
    release = node.manifest()["facts"]["release"]
    node.do(f"mv {release} /srv/deleted-release")
    run = node.play("deploy", **node.fault("crash_at_import"))
    run.failed(BACK)
    seconds = node.serving()
    node.do("rm -rf /srv/deleted-release")
    node.same.pop("sglang_env_content")
    return f"an older deployment whose release is whole came back ({seconds:.0f} s)"


@case("Journal vacuumed during the start")
def vacuumed(node: Node) -> str:
    wanted = node.other()
    run = node.start("deploy", **wanted)
    run.until("process started")
    time.sleep(3)
    node.do("journalctl --rotate && journalctl --vacuum-time=1s")
    run.end()
    check(run.code == 0, f"the deployment failed:\n{run.text[-2000:]}")
    node.keep(wanted)
    return "deployed; the stages that were lost are missing in the manifest"


@case("Clock set back by a day")
def clock(node: Node) -> str:
    node.write("/srv/yesterday/sitecustomize.py", YESTERDAY)
    node.write(
        "/usr/local/bin/python-of-yesterday", '#!/bin/sh\nexec env PYTHONPATH=/srv/yesterday /usr/bin/python3 "$@"'
    )
    node.do("chmod +x /usr/local/bin/python-of-yesterday")
    before = node.committed()
    last = node.same
    node.deployed(ansible_python_interpreter="/usr/local/bin/python-of-yesterday", **node.other())
    check(int(node.committed()) == int(before) + 1, "the deployment of yesterday's clock is not the newest on record")
    run = node.play("rollback")
    check(run.code == 0 and int(node.committed()) == int(before) + 2, f"rollback:\n{run.text[-2000:]}")
    node.same = last
    return "the order on record is kept, and rollback finds the one before"


# What a module sees of a clock that was set back: a container has no clock of its own to set.
YESTERDAY = """
import datetime, time
now, day = time.time, 86400
time.time = lambda: now() - day
class Yesterday(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(now() - day, tz)
datetime.datetime = Yesterday
"""


# The run itself.


@case("Controller killed with SIGKILL before the switch, in each stage")
def killed_before(node: Node) -> str:
    wanted = {**node.other(), "sglang_env_content": ["a release for a run that is killed"]}
    before, pid = node.state(), node.pid()
    stages = [
        "TASK [gpu_preflight",
        "Build the release",
        "TASK [sglang_model",
        "Seal the release",
        "TASK [sglang_server : Let the",
    ]
    for stage in stages:
        # Each stage of a build that is killed, and those behind it with a release that is there.
        run = node.start("deploy", **(wanted if stage == "Build the release" else node.other()))
        run.until(stage)
        if stage == "Build the release":
            time.sleep(2)
        run.kill()
        check(node.pid() == pid, f"killed at '{stage}', and the server was touched")
        check(node.state() == before, f"killed at '{stage}', and the record has changed")
    node.deployed(**node.other())
    return f"what runs was not touched in {len(stages)} of {len(stages)}; the next run went on and committed"


@case("Controller killed with SIGKILL from the switch on, in each stage")
def killed_after(node: Node) -> str:
    stages = ["Let requests in flight end", "Wait until the model answers", "Prove its answers"]
    for stage in stages:
        wanted = node.other()
        run = node.start("deploy", **wanted)
        run.until(stage)
        run.kill()
        node.deployed(**wanted)
        check(node.state()["phase"] == "committed", f"killed at '{stage}': the next run did not commit")
        check(node.running() == node.state()["digest"], f"killed at '{stage}': what runs is not what is committed")
    return f"the next run took the dead one's lock over, went on and committed, in {len(stages)} of {len(stages)}"


@case("A run that dies after the switch, and nobody comes", may_lose=True)
def forsaken(node: Node) -> str:
    digest = node.state()["digest"]
    run = node.start(
        "deploy",
        sglang_server_start_timeout=10,
        sglang_server_drain_timeout=5,
        sglang_server_proof_timeout=5,
        **node.fault("hang_at_start"),
    )
    run.until("Wait until the model answers")
    run.kill()
    seconds = node.wait(
        lambda: node.state()["phase"] == "restored" and node.answers(), "the supervisor put the last one back", 240
    )
    check(node.running() == digest, "what runs is not what was committed")
    return f"the supervisor put the last deployment back; served {seconds:.0f} s after the run had died"


@case("SSH cut in each stage", traffic=False)
def cut(node: Node) -> str:
    stages = ["TASK [sglang_model", "Let requests in flight end", "Wait until the model answers"]
    for stage in stages:
        wanted = node.other()
        run = node.start("deploy", "--ssh-extra-args=-o ServerAliveInterval=2 -o ServerAliveCountMax=2", **wanted)
        run.until(stage)
        time.sleep(1)
        node.testhosts("cut", HOST)
        try:
            run.end(120)
        finally:
            node.testhosts("mend", HOST)
        check(run.code in (2, 4), f"cut at '{stage}', and the run ended with {run.code}:\n{run.text[-2000:]}")
        node.deployed(**wanted)
        check(node.state()["phase"] == "committed", f"cut at '{stage}': the next run did not commit")
    return (
        f"the run fails, what it began goes on on the node; the next run committed, in {len(stages)} of {len(stages)}"
    )


@case("Node rebooted in mid-switch", may_lose=True)
def rebooted_switching(node: Node) -> str:
    wanted = node.other()
    run = node.start("deploy", **wanted)
    run.until("Wait until the model answers")
    time.sleep(3)
    boot = node.boot_id()
    node.do("systemctl reboot --force", ok=False)
    run.end(300)
    node.wait(lambda: node.boot_id() not in ("", boot), "the node has booted", 120)
    seconds = node.serving(120)
    check(node.state()["phase"] == "restored", "an unproved server was kept")
    node.deployed(**wanted)
    return f"the supervisor put the last one back, which served {seconds:.0f} s after boot; the next run committed"


@case("Two deploys at once")
def two(node: Node) -> str:
    wanted = node.other()
    first = node.start("deploy", **wanted)
    first.until("Take the server's lock")
    time.sleep(2)
    second = node.play("deploy")
    second.failed("is being deployed by", "last sign of life")
    first.end()
    check(first.code == 0, f"the first deployment failed:\n{first.text[-2000:]}")
    node.keep(wanted)
    return "the second is refused with who holds the lock and since when; the first commits"


@case("Requests in flight at the switch")
def in_flight(node: Node) -> str:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Traffic(node, busy=True)) for _ in range(4)]
        time.sleep(4)
        node.deployed(**node.other())
        time.sleep(2)
    counted = [client.result() for client in clients]
    lost = sum(found["lost"] for found in counted)
    check(not lost, f"{lost} requests were lost: {[found['details'] for found in counted]}")
    answered, refused = (sum(found[kind] for found in counted) for kind in ("answered", "refused"))
    return f"five clients with streams under way: {answered} answered, {refused} told to come back, none dropped"


# While it serves.


@case("kill -9 of the server", may_lose=True)
def kill_server(node: Node) -> str:
    pid = node.pid()
    node.do(f"kill -9 {pid}")
    node.wait(lambda: node.pid() not in (0, pid), "systemd started it again", 30)
    return f"systemd starts it again; served after {node.serving():.0f} s"


@case("kill -9 of a scheduler", may_lose=True)
def kill_rank(node: Node) -> str:
    pid = node.pid()
    node.do("pkill -9 -f '^sglang::scheduler'")
    node.wait(lambda: node.pid() not in (0, pid), "it was started again", 90)
    return f"the engine ends itself, systemd starts it again; served after {node.serving():.0f} s"


@case("The server hangs", may_lose=True)
def hang(node: Node) -> str:
    pid = node.pid()
    node.do("pkill -STOP -f '^sglang::scheduler'")
    node.wait(lambda: node.pid() not in (0, pid), "the supervisor ended it", 120)
    seconds = node.serving()
    said = node.do("journalctl -u sglang-supervise --since=-5min -o cat | grep 'no token' | tail -1")
    check(said, "the supervisor does not say what it did")
    return f"the supervisor says so and ends it, systemd starts it again (served {seconds:.0f} s later)"


@case("Node rebooted while it serves", may_lose=True)
def rebooted(node: Node) -> str:
    boot = node.boot_id()
    node.do("systemctl reboot", ok=False)
    node.wait(lambda: node.boot_id() not in ("", boot), "the node has booted", 120)
    return f"it serves again {node.serving():.0f} s after boot"


@case("A full /dev/shm", may_lose=True)
def full_shm(node: Node) -> str:
    # Again and again: the server that is stopped gives its own share back.
    fill = "while :; do cat /dev/zero >> /dev/shm/filler; sleep 0.05; done 2>/dev/null"
    node.do(f"mount -o remount,size=1m /dev/shm && systemd-run --quiet --unit=filler bash -c '{fill}'")
    try:
        run = node.play("deploy", **node.other())
    finally:
        node.do("systemctl stop filler; rm -f /dev/shm/filler; mount -o remount,size=50% /dev/shm")
    run.failed()
    seconds = node.serving(180)
    return f"the new one does not start, and its cause is named; the last one serves {seconds:.0f} s after there is room again"


@case("50 kills in a row", may_lose=True)
def kills(node: Node) -> str:
    node.write("/srv/kills.sh", KILLS)
    count = node.do("bash /srv/kills.sh 50", timeout=1500)
    seconds = node.serving(240)
    tries = node.do("journalctl -u sglang-supervise --since=-30min -o cat | grep -c 'start limit'", ok=False)
    return (
        f"{count} kills: systemd gave up at its start limit, the supervisor tried again after growing pauses ({tries} times); "
        f"served {seconds:.0f} s after the last"
    )


KILLS = """
killed=0; last=0
while [ $killed -lt $1 ]; do
  pid=$(systemctl show -p MainPID --value sglang)
  if [ "$pid" != 0 ] && [ "$pid" != "$last" ]; then kill -9 $pid && killed=$((killed + 1)); last=$pid; fi
  sleep 0.1
done
echo $killed
"""


# Keys and walls.


@case("A key is rotated under traffic")
def rotated(node: Node) -> str:
    pid, old, new = node.pid(), node.keys[0], "another-key-of-the-test-hosts"
    check(ask(node, 4, key=new).detail.startswith("HTTP 401"), "a key that is nobody's is taken")
    node.deployed(sglang_server_front_keys=[old, new])
    check(ask(node, 4, key=new).kind == "answered", "the new key is not taken")
    node.deployed(sglang_server_front_keys=[new, old])
    node.deployed()
    check(ask(node, 4, key=new).detail.startswith("HTTP 401"), "the key that was taken away is still taken")
    check(node.pid() == pid, "the engine was restarted for a key")
    return "both are taken while both are declared, the engine serves on"


SERVER_INFO = 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:30000/server_info").read().decode())'


@case("A key is looked for wherever one could see it", traffic=False)
def key_nowhere(node: Node) -> str:
    key = "a-key-that-nobody-may-ever-see"
    with tempfile.TemporaryDirectory() as folder:
        run = node.deployed("-vvv", "--diff", sglang_server_front_keys=[key])
        check(ask(node, 4, key=key).kind == "answered", "the key is not taken")
        bench = node.play(
            "bench", "-vvv", sglang_server_front_keys=[key], sglang_bench_results_dir=folder,
            sglang_bench_loads=[{"concurrency": 1, "prompts": 2, "input_len": 16, "output_len": 4}],
        )  # fmt: skip
        check(bench.code == 0, f"the measurement failed:\n{bench.text[-2000:]}")
        status = node.play("status", "-vvv", sglang_server_front_keys=[key])
        results = "".join(path.read_text(errors="replace") for path in Path(folder).rglob("*") if path.is_file())
    places = {
        "the deployment's output with -vvv --diff": run.text,
        "the measurement's output": bench.text,
        "the status": status.text,
        "results": results,
        "ps": node.do("ps auxeww"),
        "systemctl": node.do("systemctl show --all '*' ; systemctl cat 'sglang*'", ok=False),
        "the journal": node.do("journalctl --no-pager -a -o export | tr -d '\\000'", timeout=300),
        "/server_info": node.do(f"python3 -c '{SERVER_INFO}'"),
        "the record, units and /run": node.do(
            f"grep -rsa {key} /var/lib/sglang /etc/systemd /run/sglang /run/systemd /tmp /var/log || true"
        ),
        "what the server's user can read": node.do(
            f"runuser -u sglang -- grep -rsa {key} /etc /run /proc/self || true", ok=False
        ),
    }
    seen = [place for place, text in places.items() if key in text]
    check(not seen, f"the key can be seen in {', '.join(seen)}")
    node.deployed()
    return f"seen in none of {len(places)} places, output of -vvv and --diff among them"


@case("Walls of the unit", traffic=False)
def walls(node: Node) -> str:
    scores = {}
    for unit in ("sglang", "sglang-front", "sglang-supervise"):
        told = node.do(f"systemd-analyze security --no-pager {unit}.service | tail -1")
        scores[unit] = float(re.search(r"level for \S+: ([\d.]+)", told)[1])  # type: ignore[index]
    check(
        scores["sglang"] < 4.0, f"systemd-analyze security gives the server {scores['sglang']}, expected less than 4.0"
    )
    for path in ("/v1/../flush_cache", "/flush_cache", "/server_info", "/abort_request", "/update_weights_from_disk"):
        connection = http.client.HTTPConnection(node.address, node.port, timeout=30)
        connection.putrequest("POST", path)
        connection.putheader("Authorization", f"Bearer {node.keys[0]}")
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        status = connection.getresponse().status
        connection.close()
        check(status in (400, 404), f"the front passes {path} on ({status})")
    release = node.do("ls -d /opt/sglang/releases/*/ | head -1")
    wrote = node.do(
        f"nsenter -t {node.pid()} -m -S $(id -u sglang) -G $(id -g sglang) touch {release}x /etc/x 2>/dev/null && echo wrote",
        ok=False,
    )
    check("wrote" not in wrote, "the server can write to its release")
    return "systemd-analyze security: " + ", ".join(f"{unit} {score}" for unit, score in scores.items())


# --- the run ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Row:
    title: str
    happened: str
    gap_s: float | None
    lost: int | None
    refused: int | None
    seconds: float
    problem: str = ""


def settled(node: Node) -> str:
    """What is not as it has to be after a case; empty when the host serves what is committed."""
    node.serving(180)
    node.wait(lambda: not node.do("pgrep -f ansible/tmp || true", ok=False), "the last run's modules have ended", 60)
    state, running = node.state(), node.running()
    problems = []
    if state["phase"] not in ("committed", "restored"):
        problems.append(f"the phase is {state['phase']}")
    if state["digest"] != running:
        problems.append(f"what runs ({running}) is not what is committed ({state['digest']})")
    if node.do("ls {STATE}/closed", ok=False):
        problems.append("the front's gate is closed")
    outside = node.do(
        "for p in $(pgrep -f '^sglang::|sglang.launch_server'); do grep -q sglang.service /proc/$p/cgroup || echo $p; done",
        ok=False,
    )
    if outside:
        problems.append(f"processes of an engine are left outside its unit: {outside}")
    return "; ".join(problems)


def run_case(node: Node, one: Case) -> Row:
    began = time.monotonic()
    traffic = Traffic(node) if one.traffic else None
    happened, problem = "", ""
    try:
        with traffic or contextlib.nullcontext():
            time.sleep(1.5 if traffic else 0)
            happened = one.run(node)
            problem = settled(node)
    except (Wrong, subprocess.SubprocessError) as error:
        problem = str(error)
    except Exception:
        problem = traceback.format_exc()
    counted = traffic.result() if traffic else None
    if counted and counted["lost"] and not one.may_lose and not problem:
        problem = f"{counted['lost']} requests were lost: {counted['details']}"
    return Row(
        one.title,
        happened,
        counted["gap_s"] if counted else None,
        counted["lost"] if counted else None,
        counted["refused"] + counted["unreachable"] if counted else None,
        time.monotonic() - began,
        problem,
    )


def page(rows: list[Row], about: str) -> str:
    lines = [
        "# Reliability",
        "",
        "Made by `make molecule SCENARIO=faults` (part of `make test-full`), which does each of these to a real systemd host with",
        "the real engine, while clients send requests through the front; a case that ends otherwise fails the test.",
        "",
        f"Measured on {about}. Times hold for that machine and a tiny model, whose start is some 15 to 30 s of them; what counts",
        "is what comes back by itself and what is lost.",
        "",
        "- **Without an answer**: the longest time in which no client got an answer, drain, start and proof included. Below 3 s",
        "  nothing was noticed.",
        "- **Lost**: requests that were taken in and got no whole answer. Where the engine itself is killed, what it had in",
        "  hand goes with it.",
        "- **Told to come back**: requests that got 503 with Retry-After, or found nobody listening.",
        "",
        "| fault | what happened | without an answer | lost | told to come back |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        numbers = ["not counted"] * 3 if row.gap_s is None else [f"{row.gap_s:.0f} s", str(row.lost), str(row.refused)]
        lines.append(f"| {row.title} | {row.happened} | {' | '.join(numbers)} |")
    missing = [one.title for one in CASES if one.title not in {row.title for row in rows}]
    if missing:
        lines += ["", "Not in this table, since they were not run with it:", *(f"- {title}" for title in missing)]
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inventory", type=Path, default=HERE / "inventory")
    parser.add_argument("--only", action="append", default=[], help="cases whose title holds this, again for more")
    parser.add_argument("--list", action="store_true", help="the cases' titles")
    parser.add_argument("--kept", type=Path, help="JSON of the cases that passed; they are not done again")
    parser.add_argument("--write", type=Path, help="where the table goes when all cases passed")
    options = parser.parse_args()
    chosen = [
        one for one in CASES if not options.only or any(word.lower() in one.title.lower() for word in options.only)
    ]
    if options.list:
        print("\n".join(one.title for one in chosen))
        return 0
    node = Node(options.inventory)
    node.do("rm -rf /srv/injector; mkdir -p /srv/injector")
    node.write("/srv/injector/sitecustomize.py", (HERE / "injector/sitecustomize.py").read_text())
    kept = json.loads(options.kept.read_text()) if options.kept and options.kept.exists() else {}
    rows = []
    for number, one in enumerate(chosen, 1):
        if one.title in kept:
            rows.append(Row(**kept[one.title]))
            continue
        print(f"[{number}/{len(chosen)}] {one.title} ...", flush=True)
        row = run_case(node, one)
        rows.append(row)
        counted = (
            ""
            if row.gap_s is None
            else f"; {row.gap_s:.0f} s without an answer, {row.lost} lost, {row.refused} told to come back"
        )
        print(
            f"    {'FAILED: ' + row.problem if row.problem else row.happened}{counted} ({row.seconds:.0f} s)",
            flush=True,
        )
        if options.kept and not row.problem:
            kept[one.title] = dataclasses.asdict(row)
            options.kept.write_text(json.dumps(kept, indent=1))
        if row.problem:  # the next case begins with a host that serves
            again = node.play("deploy", sglang_server_break_lock="any")
            node.same = {}
            if again.code:
                print(f"    and the host could not be brought back:\n{again.text[-3000:]}", flush=True)
                break
    bad = [row for row in rows if row.problem]
    print(
        f"{len(rows) - len(bad)} of {len(chosen)} faults survived in {sum(row.seconds for row in rows):.0f} s",
        flush=True,
    )
    if options.write and not bad:
        model = next(
            (
                line.split(":")[1].strip()
                for line in Path("/proc/cpuinfo").read_text().splitlines()
                if "model name" in line
            ),
            "",
        )
        today = datetime.date.today().isoformat()
        about = f"{today}, Debian 12 on {os.cpu_count()} shared cores ({model}), SGLang 0.5.23 on a CPU, `cpu_demo` behind a front"
        options.write.write_text(page(rows, about))
    return 1 if bad or len(rows) < len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
