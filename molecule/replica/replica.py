#!/usr/bin/env python3
"""Do to two real hosts with the real engine what goes wrong with one model over several nodes.

Every case begins and ends with a replica that serves what is committed.

    replica.py INVENTORY [WORD …]    all cases, or those whose title holds a word
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "shared"))

from hosts import Host, Play, check

GROUP = "replica_two"
KEY = "a-key-of-the-test-hosts-alone"
ASK = {"text": "def add(a, b):", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}


class Replica:
    """Both hosts, the playbooks over them, and what they say of themselves."""

    def __init__(self, inventory: Path) -> None:
        self.head, self.stage = Host(inventory, "head"), Host(inventory, "stage")
        self.both = (self.head, self.stage)

    def play(self, playbook: str, *words: str, limit: str = GROUP, timeout: float = 500, **variables: Any) -> Play:
        argv = self.head.command(playbook, *words, **variables)
        argv[argv.index("-l") + 1] = limit
        run = Play(argv)
        run.end(timeout)
        return run

    def deploy(self, **variables: Any) -> Play:
        return self.play("deploy", **variables)

    def state(self, host: Host) -> dict[str, Any]:
        state = json.loads(host.do("cat /var/lib/sglang/sglang/state.json"))
        number = state.get("deployment")
        entry = json.loads(host.do(f"cat /var/lib/sglang/sglang/deployments/{number}.json")) if number else {}
        return {**state, "entry": entry}

    def pids(self) -> list[str]:
        return [host.do("systemctl show --value -p MainPID sglang") for host in self.both]

    def answer(self) -> bytes:
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.head.address}:8000/generate", json.dumps(ASK).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as told:
            return bytes(told.read())

    def serves(self) -> bool:
        try:
            return json.loads(self.answer())["meta_info"]["completion_tokens"] == 8
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def until_it_serves(self, timeout: float = 240) -> float:
        began = time.monotonic()
        while not self.serves():
            check(time.monotonic() - began < timeout, f"no answer within {timeout:.0f} s")
            time.sleep(1)
        return time.monotonic() - began

    def as_committed(self) -> None:
        """Both have the same deployment on record, and it is what runs."""
        states = [self.state(host) for host in self.both]
        check([state["phase"] for state in states].count("switched") == 0, f"a switch was left open: {states}")
        wholes = {state["entry"]["facts"]["replica"]["together"] for state in states}
        check(len(wholes) == 1, f"they are of different deployments: {wholes}")
        for host, state in zip(self.both, states):
            environment = host.do("tr '\\0' '\\n' < /proc/$(systemctl show --value -p MainPID sglang)/environ")
            check(f"SGLANG_DEPLOYMENT={state['entry']['digest']}" in environment, f"{host.name} runs something else")
        check(self.serves(), "the head does not answer")


# --- cases ----------------------------------------------------------------------------------------------------------------


def they_are_one_server(two: Replica) -> str:
    two.as_committed()
    units = [host.do("cat /etc/systemd/system/sglang.service") for host in two.both]
    for rank, unit in enumerate(units):
        check("--nnodes 2" in unit and f"--node-rank {rank}" in unit, f"rank {rank} has another unit:\n{unit}")
        check(f"--dist-init-addr {two.head.address}:20000" in unit, unit)
        check("GLOO_SOCKET_IFNAME=eth0" in unit, unit)
    check("--rank" not in two.head.do("cat /etc/systemd/system/sglang-supervise.service"), "the head is no rank")
    check(
        "--rank 1" in two.stage.do("cat /etc/systemd/system/sglang-supervise.service"),
        "the stage's supervisor does not know",
    )
    check(two.stage.do("ls /etc/systemd/system/sglang-front.service || true") == "", "a front stands before the stage")
    return "a front and a proof at the head alone"


def nothing_changes(two: Replica) -> str:
    before = two.pids()
    run = two.deploy()
    check(run.code == 0 and "changed=0" in run.told, run.text[-3000:])
    check(before == two.pids(), "a server was restarted")
    return f"{run.seconds:.0f} s"


def a_part_is_refused(two: Replica) -> str:
    before = two.pids()
    two.play("deploy", limit="head").failed("this run leaves out stage", "-l replica_two")
    run = two.deploy(sglang_server_args_overlay={"pipeline-parallel-size": 3})
    run.failed("cannot be shared out over 2 nodes", "pipeline-parallel-size to 2")
    check(before == two.pids(), "a server was restarted")
    return "before anything was touched"


def a_port_that_is_taken(two: Replica) -> str:
    two.head.do("systemd-run -q --unit=squatter python3 -m http.server 21000; sleep 1")
    try:
        two.deploy(sglang_server_dist_port=21000).failed(
            "port 21000 of the head is in use by process", "squatter.service"
        )
    finally:
        two.head.do("systemctl stop squatter")
    two.deploy(sglang_server_dist_address="10.255.255.1").failed("no interface has the address 10.255.255.1")
    two.as_committed()
    return "and an address that is not the head's"


def other_arguments(two: Replica) -> str:
    before = two.pids()
    run = two.deploy(sglang_server_args_overlay={"pipeline-parallel-size": 2, "max-running-requests": 16})
    check(run.code == 0, run.text[-4000:])
    check(all(one != other for one, other in zip(before, two.pids())), "one of them was not restarted")
    two.as_committed()
    return f"{run.seconds:.0f} s"


def a_stage_that_dies_at_its_start(two: Replica) -> str:
    before = two.state(two.head)["entry"]["id"]
    for host, text in ((two.head, "A=1"), (two.stage, "PYTHONHOME=/nowhere")):
        host.do(f"umask 077; echo {text} > /srv/environment")
    run = two.deploy(sglang_server_environment_file="/srv/environment")
    run.failed(
        "stage (rank 1) ended first",
        "is not waited for any longer, since stage failed",
        "was put back and serves again",
    )
    check(two.state(two.head)["entry"]["id"] == before, "something else was committed")
    two.as_committed()
    return f"put back on both after {run.seconds:.0f} s"


def a_switch_of_the_head_that_is_refused(two: Replica) -> str:
    """The disk of the stage is fine, the head's unit is somebody's: nothing is stopped on either."""
    before = two.pids()
    two.head.do("mkdir -p /etc/sglang/sglang; : > /srv/key")
    run = two.deploy(sglang_server_front_certificate="/srv/none.pem", sglang_server_front_certificate_key="/srv/key")
    check(run.code == 2, run.text[-3000:])
    check(
        "stage: replica_two serves one model, and head did not come as far as 'ready for the switch'" in run.told,
        run.text[-3000:],
    )
    check(before == two.pids(), "a server was restarted")
    two.as_committed()
    return "nothing was stopped"


def killed(name: str) -> Callable[[Replica], str]:
    def case(two: Replica) -> str:
        before = two.pids()
        getattr(two, name).do("systemctl kill --kill-who=all --signal=SIGKILL sglang")
        time.sleep(3)
        seconds = two.until_it_serves()
        check(all(one != other for one, other in zip(before, two.pids())), "one of them lived on")
        two.as_committed()
        return f"both ended and came back, answers after {seconds + 3:.0f} s"

    return case


def who_failed_first(two: Replica) -> str:
    two.stage.do("systemctl kill --kill-who=all --signal=SIGKILL sglang")
    time.sleep(3)
    two.until_it_serves()
    run = two.play("doctor")
    check("Of replica_two (head, stage; head head) stage (rank 1) ended first; head" in run.told, run.text[-3000:])
    return next(line.strip() for line in run.text.splitlines() if "ended first" in line)


def back_to_the_one_before(two: Replica) -> str:
    run = two.play("rollback")
    check(run.code == 0, run.text[-4000:])
    two.as_committed()
    page = two.play("status")
    check("rank 1 of replica_two" in page.told and "REPLICA:" not in page.told, page.text)
    return f"{run.seconds:.0f} s"


def nothing_is_left(two: Replica) -> str:
    run = two.play("undeploy", sglang_undeploy_weights=True)
    check(run.code == 0, run.text[-3000:])
    for host in two.both:
        left = host.do(
            "ls /etc/systemd/system/sglang* /etc/sglang/* 2>/dev/null; pgrep -fa '[l]aunch_server' || true", ok=False
        )
        check(left == "", f"{host.name}: {left}")
    return "on both"


CASES: dict[str, Callable[[Replica], str]] = {
    "two hosts are one server": they_are_one_server,
    "a second run changes nothing": nothing_changes,
    "a part of it is refused": a_part_is_refused,
    "a port that is taken is refused": a_port_that_is_taken,
    "other arguments": other_arguments,
    "a stage that dies at its start": a_stage_that_dies_at_its_start,
    "a head that is refused before the switch": a_switch_of_the_head_that_is_refused,
    "the stage is killed": killed("stage"),
    "the head is killed": killed("head"),
    "the doctor says who failed first": who_failed_first,
    "back to the deployment before": back_to_the_one_before,
    "undeploy": nothing_is_left,
}


def main() -> int:
    two, words = Replica(Path(sys.argv[1])), sys.argv[2:]
    for title, case in CASES.items():
        if not words or any(word in title for word in words):
            began = time.monotonic()
            print(f"{title}: {case(two)} ({time.monotonic() - began:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
