#!/usr/bin/env python3
"""Change three real engines behind a real gateway under steady traffic, break what can be broken, and count lost requests.

fleet.py --inventory DIR            all cases, in order
fleet.py --only roll --only kill    those whose title holds a word
fleet.py --list

While a case runs, clients send short requests and long streams through the gateway. A request is lost when no whole answer came,
whatever it was told.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "shared"))

from hosts import BIN, ROOT, Host, Play, Wrong, check, environment
from traffic import Traffic, ask

WORKERS = ("worker-1", "worker-2", "worker-3")
# The router's, with which it is asked on its host.
KEY = "/etc/sglang/sglang-gateway/worker.key"
# Ports on its loopback: the router, Prometheus.
BEHIND = (30100, 9090)
OTHER_STACK = "sglang-cpu-0.5.15.post1"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Gateway(Host):
    """Where clients come in, and where the router says how its workers are."""

    def __init__(self, inventory: Path) -> None:
        super().__init__(inventory, "gateway")
        self.port = int(self.facts.get("sglang_gateway_port", 8080))
        self.keys = self.facts["sglang_gateway_keys"]

    def answers(self) -> bool:
        return ask(self, tokens=4).kind == "answered"

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """What listens on the host's loopback alone is reached by one connection: a look costs as good as nothing."""
        ports = [free_port() for _ in BEHIND]
        told = [word for port, there in zip(ports, BEHIND) for word in ("-L", f"{port}:127.0.0.1:{there}")]
        self.router, self.prometheus = (f"http://127.0.0.1:{port}" for port in ports)
        self.key = self.do(f"cat {KEY}")
        tunnel = subprocess.Popen([*self.ssh, "-N", *told])
        try:
            self.wait(lambda: self.asked(f"{self.router}/workers"), "the router's list can be read", 20)
            yield
        finally:
            tunnel.terminate()
            tunnel.wait()

    def asked(self, url: str) -> Any:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.key}"})
        try:
            with urllib.request.urlopen(request, timeout=10) as told:
                return json.load(told)
        except OSError as error:
            raise Wrong(f"{url}: {error}") from error

    def query(self, text: str) -> list[dict[str, Any]]:
        """What Prometheus says."""
        told = self.asked(f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': text})}")
        found: list[dict[str, Any]] = told["data"]["result"]
        return found


class Fleet:
    """The hosts, and playbooks on all of them."""

    def __init__(self, inventory: Path) -> None:
        self.inventory = inventory
        self.gateway = Gateway(inventory)
        self.workers = {name: Host(inventory, name) for name in WORKERS}
        # What is deployed, so that the next case deploys the same or another.
        self.same: dict[str, Any] = {}

    def start(self, playbook: str, *words: str, **variables: Any) -> Play:
        argv = [str(BIN / "ansible-playbook"), "-i", str(self.inventory), str(ROOT / f"{playbook}.yml"), *words]
        return Play([*argv, "-e", json.dumps(variables)] if variables else argv)

    def play(self, playbook: str, *words: str, timeout: float = 580, **variables: Any) -> Play:
        run = self.start(playbook, *words, **variables)
        run.end(timeout)
        return run

    def deployed(self, *words: str, **variables: Any) -> Play:
        """A deployment of all that has to succeed, and is what the next cases begin with."""
        run = self.play("deploy", *words, **variables)
        check(run.code == 0, f"the deployment failed:\n{run.text[-4000:]}")
        self.same = variables
        return run

    def overlay(self, requests: int) -> dict[str, Any]:
        """Variables of a deployment with other arguments."""
        return {**self.same, "sglang_server_args_overlay": {"max-running-requests": requests}}

    def router(self) -> list[dict[str, Any]]:
        """The router's workers, by its own word."""
        found: list[dict[str, Any]] = self.gateway.asked(f"{self.gateway.router}/workers")["workers"]
        return found

    def named(self, listed: list[dict[str, Any]]) -> set[str]:
        """Names of the router's workers."""
        return {
            name for name, host in self.workers.items() if any(f"//{host.address}:" in one["url"] for one in listed)
        }

    def healthy(self) -> set[str]:
        """Names of the workers that the router finds healthy."""
        return self.named([one for one in self.router() if one["is_healthy"]])

    def manifest(self, name: str) -> dict[str, Any]:
        """Of the newest deployment on record."""
        text = self.workers[name].do("cat $(ls /var/lib/sglang/sglang/deployments/*.json | tail -n 1)")
        found: dict[str, Any] = json.loads(text)
        return found

    def whole(self, timeout: float = 120) -> None:
        self.gateway.wait(lambda: self.healthy() == set(WORKERS), "the router finds all workers healthy", timeout)


class Watch:
    """Notes how many healthy workers the router had at the least while something was done, and who was out of its list in turn."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.least = len(WORKERS)
        self.order: list[str] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop.set()
        self.thread.join(60)

    def _look(self) -> None:
        while not self.stop.wait(0.5):
            with contextlib.suppress(Wrong, ValueError, KeyError):
                listed = self.fleet.router()
                self.least = min(self.least, sum(one["is_healthy"] for one in listed))
                away = sorted(set(WORKERS) - self.fleet.named(listed))
                if len(away) == 1 and self.order[-1:] != away:
                    self.order += away


# --- cases ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Case:
    """`may_lose`: how many requests may go with what is broken."""

    title: str
    run: Callable[[Fleet], str]
    may_lose: int = 0
    traffic: bool = True


CASES: list[Case] = []


def case(title: str, **options: Any) -> Callable[[Callable[[Fleet], str]], Callable[[Fleet], str]]:
    def add(run: Callable[[Fleet], str]) -> Callable[[Fleet], str]:
        CASES.append(Case(title, run, **options))
        return run

    return add


def rolled(fleet: Fleet, change: Callable[[], Any]) -> str:
    """A roll through all workers, one after the other, with two at the router at all times."""
    with Watch(fleet) as watch:
        change()
    fleet.whole()
    check(watch.least >= 2, f"the router was left with {watch.least} workers")
    check(watch.order == list(WORKERS), f"the workers were taken out of the router's list in this order: {watch.order}")
    return "one after the other, two at the router at all times"


def none_changed(run: Play) -> None:
    counts = re.findall(r"changed=(\d+)", run.text)
    check(
        run.code == 0 and counts == ["0"] * len(WORKERS),
        f"with nothing to change it changed something:\n{run.text[-3000:]}",
    )


@case("All of the fleet is deployed, and a second deployment changes nothing", traffic=False)
def unchanged(fleet: Fleet) -> str:
    fleet.whole()
    run = fleet.deployed()
    none_changed(run)
    none_changed(fleet.play("prepare"))
    check(fleet.gateway.answers(), "nobody answers through the gateway")
    return f"{run.seconds:.0f} s for three workers"


@case("A worker fails in the middle of a roll to other arguments, and the next run goes on")
def failing(fleet: Fleet) -> str:
    """worker-2 cannot write its unit: it and worker-3 go on with what they have, and the roll ends there."""
    second = fleet.workers["worker-2"]
    before = {name: fleet.manifest(name)["id"] for name in WORKERS}
    folder = "/etc/systemd/system"

    def broken_and_mended() -> None:
        second.do(f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}")
        try:
            run = fleet.play("deploy", **fleet.overlay(16))
        finally:
            second.do(f"umount -l {folder}")
        run.failed("worker-2")
        after = {name: fleet.manifest(name)["id"] for name in WORKERS}
        check(after["worker-1"] != before["worker-1"], "worker-1 was not changed")
        check(after["worker-2"] == before["worker-2"], "worker-2 was changed")
        check(
            after["worker-3"] == before["worker-3"] and "worker-3" not in run.text, "the roll did not end at worker-2"
        )
        fleet.whole()
        first = after["worker-1"]
        fleet.deployed(**fleet.overlay(16))
        check(fleet.manifest("worker-1")["id"] == first, "worker-1 was changed again")

    said = rolled(fleet, broken_and_mended)
    for name in WORKERS:
        argv = fleet.manifest(name)["facts"]["argv"]
        check(argv[argv.index("--max-running-requests") + 1] == "16", f"{name} runs with {argv}")
    return f"the roll ended there, the next run changed the two that were left; {said}"


@case("A roll to another release, built once and shared")
def release(fleet: Fleet) -> str:
    said = rolled(fleet, lambda: fleet.deployed(**{**fleet.same, "sglang_env_stack": OTHER_STACK}))
    releases = {fleet.manifest(name)["facts"]["release"] for name in WORKERS}
    check(len(releases) == 1 and OTHER_STACK in releases.pop(), f"the workers run {releases}")
    return said


@case("Rollback of all")
def rollback(fleet: Fleet) -> str:
    def back() -> None:
        run = fleet.play("rollback")
        check(run.code == 0, f"the rollback failed:\n{run.text[-4000:]}")

    said = rolled(fleet, back)
    for name in WORKERS:
        check("0.5.23" in fleet.manifest(name)["facts"]["release"], f"{name} did not go back")
    fleet.same = fleet.overlay(16)
    fleet.same.pop("sglang_env_stack", None)
    return said


@case("A worker is killed under load", may_lose=2)
def kill(fleet: Fleet) -> str:
    """A stream that it had begun is lost with it; what it had not begun goes to the others."""
    third = fleet.workers["worker-3"]
    third.do("systemctl kill -s KILL sglang")
    third.wait(lambda: "worker-3" not in fleet.healthy(), "the router finds it dead", 60)
    fleet.whole(180)
    return "systemd started it again, and the router took it back"


@case("A worker goes down, is an alert, and comes back")
def down(fleet: Fleet) -> str:
    second = fleet.workers["worker-2"]
    second.do("systemctl stop sglang-supervise.timer sglang")
    second.wait(lambda: "worker-2" not in fleet.healthy(), "the router finds it away", 60)
    try:
        run = fleet.play("deploy", "-l", "worker-1", **fleet.overlay(14))
        run.failed("sglang_fleet_min_serving")
        fleet.gateway.wait(
            lambda: fleet.gateway.query(
                'ALERTS{alertname=~"SglangServerDown|SglangServerFailing|SglangWorkerUnhealthy"}'
            ),
            "an alert",
            240,
        )
    finally:
        second.do("systemctl start sglang sglang-supervise.timer")
    fleet.whole(180)
    return "meanwhile a deployment that would have left one was refused"


@case("A gateway that is told of a worker with another model", traffic=False)
def strange(fleet: Fleet) -> str:
    other = {"sglang_server_model_name": "another"}
    with tempfile.TemporaryDirectory() as folder:
        for path in fleet.inventory.iterdir():
            (Path(folder) / path.name).symlink_to(path.resolve())
        (Path(folder) / "other.yml").write_text(json.dumps({"all": {"hosts": {"worker-3": other}}}))
        argv = [str(BIN / "ansible-playbook"), "-i", folder, str(ROOT / "gateway.yml")]
        run = Play(argv)
        run.end(120)
    run.failed("different models", "worker-3")
    check(fleet.gateway.answers(), "nobody answers through the gateway")
    return "refused; what runs was not touched"


@case("The metrics that rules and dashboard name are exported", traffic=False)
def monitored(fleet: Fleet) -> str:
    gateway = fleet.gateway
    gateway.wait(lambda: not gateway.query("up == 0") and len(gateway.query("up == 1")) >= 7, "all targets are up", 90)
    told = subprocess.run(
        [sys.executable, str(ROOT / "tools/metrics"), "--prometheus", gateway.prometheus],
        env=environment(), cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    check(told.returncode == 0, f"metrics are missing:\n{told.stdout}{told.stderr}")
    return told.stdout.strip().splitlines()[-1]


# --- the run ----------------------------------------------------------------------------------------------------------


def run(fleet: Fleet, one: Case) -> tuple[bool, str]:
    began = time.monotonic()
    try:
        if one.traffic:
            with Traffic(fleet.gateway) as traffic:
                said = one.run(fleet)
            seen = traffic.result()
            lost = seen["lost"] + seen["refused"] + seen["unreachable"]
            counts = f"{seen['answered']} answered, {lost} lost"
            check(seen["answered"] > 0, "nobody was answered")
            check(lost <= one.may_lose, f"{counts}: {seen['details']}")
            said = f"{said}; {counts}, at most {seen['gap_s']:.1f} s without an answer"
        else:
            said = one.run(fleet)
    except Wrong as error:
        return False, str(error)
    except Exception:
        return False, traceback.format_exc()
    return True, f"{said} ({time.monotonic() - began:.0f} s)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inventory", type=Path)
    parser.add_argument("--only", action="append", help="a word of the titles of cases to run")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = [one for one in CASES if not options.only or any(word in one.title for word in options.only)]
    if options.list or not options.inventory:
        print("\n".join(one.title for one in CASES))
        return 0
    fleet = Fleet(options.inventory)
    bad = 0
    with fleet.gateway.reached():
        for number, one in enumerate(chosen, 1):
            good, said = run(fleet, one)
            bad += not good
            print(f"[{number}/{len(chosen)}] {'ok' if good else 'FAILED'}  {one.title}: {said}", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} cases")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
