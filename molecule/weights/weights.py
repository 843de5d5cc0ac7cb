#!/usr/bin/env python3
"""Move weights of several GB between real hosts, and do to them what goes wrong: links, runs, disks.

weights.py --inventory DIR            all cases, in order
weights.py --only "link" --only hub   those whose title holds a word
weights.py --client FOLDER            lay the hub's client there
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "shared"), str(HERE.parents[1] / "tests/unit")]

from hosts import BIN, ROOT, Host, Play, Wrong, check
from hub import COMMIT, StandInHub, client

PATH = "/srv/models/big"
# Of 256 MiB, for what is not about size, with a bandwidth that leaves time to do something to it.
SMALL = "/srv/models/small"
SLOW = {"sglang_model_path": SMALL, "sglang_model_peer_bandwidth": 15}
UNIT = "sglang-weights-8730"
CASES: list[tuple[str, Callable[[Fleet], str]]] = []


def case(title: str) -> Callable[[Callable[[Fleet], str]], Callable[[Fleet], str]]:
    def kept(function: Callable[[Fleet], str]) -> Callable[[Fleet], str]:
        CASES.append((title, function))
        return function

    return kept


class Fleet:
    """Three hosts, and the play that brings weights to them."""

    def __init__(self, inventory: Path) -> None:
        self.inventory = inventory
        self.hosts = {name: Host(inventory, name) for name in ("node-1", "node-2", "node-3")}

    def __getitem__(self, number: int) -> Host:
        return self.hosts[f"node-{number}"]

    def start(self, *words: str, limit: str = "all", **variables: Any) -> Play:
        argv = [
            str(BIN / "ansible-playbook"),
            "-i",
            str(self.inventory),
            str(HERE / "converge.yml"),
            "-l",
            limit,
            *words,
        ]
        return Play([*argv, "-e", json.dumps(variables)])

    def bring(self, *words: str, limit: str = "all", **variables: Any) -> Play:
        run = self.start(*words, limit=limit, **variables)
        run.end(300)
        return run

    def brought(self, *words: str, limit: str = "all", **variables: Any) -> Play:
        run = self.bring(*words, limit=limit, **variables)
        check(run.code == 0, f"the weights did not come:\n{run.text[-4000:]}")
        return run

    def sums(self, path: str = PATH, files: str = "*.json *-00002-*.safetensors") -> list[str]:
        """SHA-256 of what the nodes have, by sha256sum and not by us; of one shard where it is about more than the first time."""
        command = f"cd {path} && sha256sum $(ls {files}) | sha256sum"
        found: dict[str, str] = {}

        def ask(host: Host) -> None:
            found[host.name] = host.do(command)

        threads = [threading.Thread(target=ask, args=(host,)) for host in self.hosts.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found.get(name, f"{name} has nothing") for name in self.hosts]

    def alike(self, *words: str) -> None:
        sums = self.sums(*words)
        check(len(set(sums)) == 1, f"the nodes have different files: {sums}")

    def closed(self) -> None:
        """Nothing of a transfer is left on any node."""
        for host in self.hosts.values():
            left = host.do(
                f"systemctl is-active {UNIT} | grep -v inactive; ls -d /run/sglang/weights-* /run/{UNIT} /srv/models/*.incomplete "
                "/srv/models/.*.job* 2>/dev/null; pgrep -fa '[r]sync'; ss -ltn | grep :8730",
                ok=False,
            )
            check(not left, f"{host.name} has this left of a transfer: {left}")

    def small(self) -> None:
        """All nodes have the small model."""
        program = (HERE / "make_weights.py").read_text()
        self[1].do(f"test -d {SMALL} || python3 - {SMALL} 4 64 <<'END'\n{program}\nEND")
        self.brought(sglang_model_path=SMALL)

    def job(self, number: int, path: str = PATH) -> int:
        """The process that keeps a node's transfer."""
        folder, name = path.rsplit("/", 1)
        return int(
            self[number].do(
                f'python3 -c \'import json; print(json.load(open("{folder}/.{name}.job/job.json"))["pid"])\''
            )
        )

    def lose(self, number: int, path: str = PATH) -> None:
        self[number].do(f"rm -rf {path} {path}.incomplete")


def came(run: Play) -> int:
    """Bytes that the transfers of a verbose run brought."""
    takes = [task for task in run.text.split("\nTASK [") if task.startswith("sglang_model : Take them]")]
    counts = re.findall(r"^ +bytes: (\d+)\n +changed: true\n +complete: true", "".join(takes), re.M)
    return sum(int(count) for count in counts)


def seconds(run: Play) -> float:
    found = re.findall(r"^\s+seconds: ([\d.]+)$", run.text, re.M)
    check(found, f"the run does not say how long the transfer took:\n{run.text[-3000:]}")
    return float(found[-1])


@case("A second run asks each node once and hashes nothing")
def again(fleet: Fleet) -> str:
    fleet.alike(PATH, "*.json *.safetensors")
    fleet.closed()
    run = fleet.brought("-vvv")
    trips = len(re.findall(r"<[^>]+> SSH: EXEC ", run.text))
    check("changed=1" not in run.text, f"something changed:\n{run.text[-2000:]}")
    check(0 < trips <= 3, f"{trips} commands over SSH for three nodes with nothing to do")
    return f"{trips} commands over SSH for three nodes"


@case("A node that is alone in its batch; the sender's link is cut in the middle")
def cut(fleet: Fleet) -> str:
    fleet.lose(3)
    run = fleet.start("-vvv", limit="node-3", sglang_model_peer_bandwidth=250)
    run.until("GB from node-1")
    time.sleep(4)
    secret = fleet[3].do("stat -c %a:%U /srv/models/.big.job/secret && cat /srv/models/.big.job/secret").splitlines()
    check(secret[0] == "600:root", f"the secret lies about: {secret[0]}")
    for host in (fleet[1], fleet[3]):
        seen = host.do(
            f"ps axww | grep -c '[{secret[1][0]}]{secret[1][1:]}'; journalctl -q | grep -c {secret[1]}", ok=False
        )
        check(seen.split() == ["0", "0"], f"the secret shows on {host.name}: {seen}")
    fleet[1].testhosts("cut", "node-1")
    time.sleep(35)  # longer than rsync's own patience
    check(run.process.poll() is None, f"the run ended while the link was cut:\n{run.text[-3000:]}")
    fleet[1].testhosts("mend", "node-1")
    run.end(240)
    check(run.code == 0, f"the weights did not come:\n{run.text[-4000:]}")
    check(len(secret[1]) == 40 and secret[1] not in run.text, "the secret shows in what the run says")
    widest = max(len(line.rstrip()) for line in run.text.splitlines() if re.match(r"node-3: .* left$", line))
    check(widest <= 80, f"progress takes {widest} columns")
    fleet.alike()
    fleet.closed()
    return f"cut for 35 s, all there after {run.seconds:.0f} s; progress in {widest} columns"


@case("The controller is killed; the next run follows what it began")
def killed(fleet: Fleet) -> str:
    fleet.small()
    fleet.lose(3, SMALL)
    run = fleet.start(limit="node-3", **SLOW)
    run.until("GB from node-1")
    run.kill()
    fleet.job(3, SMALL)
    # It may end while the next run is on its way to it: then that finds the weights.
    run = fleet.brought("-v", limit="node-3", **SLOW)
    # A task that was skipped is not shown.
    check("Let the sender give them to this node" not in run.text, f"the next run began anew:\n{run.text[-4000:]}")
    fleet.alike(SMALL)
    fleet.closed()
    return "the transfer went on, and was followed to its end"


@case("The transfer itself is killed; the next run goes on where it was")
def torn(fleet: Fleet) -> str:
    fleet.lose(3, SMALL)
    run = fleet.start(limit="node-3", **SLOW)
    run.until("GB from node-1")
    time.sleep(5)
    run.kill()
    fleet[3].do(f"pkill -KILL -s $(ps -o sid= -p {fleet.job(3, SMALL)})")
    there = int(fleet[3].do(f"du -sb {SMALL}.incomplete | cut -f1"))
    run = fleet.brought("-v", limit="node-3", **SLOW)
    total, brought = 256 << 20, came(run)
    check(there > total // 20, f"only {there} bytes were there")
    check(0 < brought <= total - there * 0.9, f"{brought} bytes came again, though {there} were there")
    fleet.alike(SMALL)
    fleet.closed()
    return f"{there >> 20} MiB were there, {brought >> 20} MiB came"


ROT = f"""
cd {SMALL} && f=$(ls *.safetensors | sed -n 2p) && t=$(stat -c %y $f)
printf 'rot' | dd of=$f bs=1 seek=50000000 conv=notrunc status=none && touch -d "$t" $f
"""


@case("A sender whose disk turned bits: its file is refused, taken from another node, and healed there")
def rotten(fleet: Fleet) -> str:
    fleet[1].do(ROT)
    fleet.lose(3, SMALL)
    run = fleet.brought("-v", limit="node-3", sglang_model_path=SMALL)
    check("node-1 has a wrong model-00002-of-00004.safetensors" in run.told, f"it is not said:\n{run.text[-4000:]}")
    check("node-3 -> node-2(" in run.text, f"nothing came from node-2:\n{run.text[-4000:]}")
    check(came(run) <= 65 << 20, f"more than the one file came again: {came(run)}")
    sums = fleet.sums(SMALL)
    check(sums[1] == sums[2] != sums[0], f"{sums}")
    run = fleet.brought("-v", sglang_model_path=SMALL)
    check("is corrupt" in run.told, f"it is not said:\n{run.text[-4000:]}")
    fleet.alike(SMALL)
    fleet.closed()
    return "refused, taken from node-2; node-1 was healed by the next run"


@case("The bandwidth is bounded")
def bounded(fleet: Fleet) -> str:
    took = {}
    for bound in (25, 75):
        fleet.lose(2, SMALL)
        took[bound] = seconds(
            fleet.brought("-v", limit="node-2", sglang_model_path=SMALL, sglang_model_peer_bandwidth=bound)
        )
    ratio = took[25] / took[75]
    check(2 < ratio < 4, f"a third of the bandwidth took {ratio:.1f} times as long ({took})")
    fleet.closed()
    return f"a third of the bandwidth took {ratio:.1f} times as long"


@case("Nobody took anything for a while: the daemon ends by itself")
def forgotten(fleet: Fleet) -> str:
    fleet.lose(2, SMALL)
    variables = {"sglang_model_path": SMALL, "sglang_model_peer_bandwidth": 5, "sglang_model_patience": 1}
    run = fleet.start(limit="node-2", **variables)
    run.until("GB from node-1")
    run.kill()
    fleet[2].do(f"pkill -KILL -s $(ps -o sid= -p {fleet.job(2, SMALL)})")
    check(fleet[1].do(f"systemctl is-active {UNIT}", ok=False) == "active", "there is no daemon to be forgotten")
    owner = fleet[1].do("stat -c %U:%a /run/sglang/weights-8730/secret 2>&1; ps -C rsync -o user= | head -1", ok=False)
    check("No such file" in owner and "root" not in owner, f"a secret lies about, or root serves: {owner}")
    refused = fleet[3].do(
        "timeout 10 bash -c 'exec 3<>/dev/tcp/10.213.43.11/8730; head -c 1 <&3 | wc -c' 2>&1", ok=False
    )
    until = time.monotonic() + 100
    while fleet[1].do(f"systemctl is-active {UNIT}", ok=False) == "active":
        check(time.monotonic() < until, "the daemon still listens after 100 s")
        time.sleep(2)
    fleet.lose(2, SMALL)
    fleet[2].do("rm -rf /srv/models/.small.job*")
    fleet.closed()
    return f"gone after a minute, with its files (node-3 got {refused or 'nothing'!r} from it)"


@case("The hub is asked by one node, the others ask it")
def hubbed(fleet: Fleet) -> str:
    path = "/srv/models/hubbed"
    files = dict.fromkeys(("config.json", "tokenizer_config.json"), b"{}")
    for number in (1, 2, 3):
        size = 30 << 20
        header = json.dumps({f"w{number}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        files[f"model-{number}.safetensors"] = len(header).to_bytes(8, "little") + header + bytes([number]) * size
    hub = StandInHub(files)
    hub.elsewhere = "10.213.43.1"
    hub.cut_after = {"model-2.safetensors": 21 << 20}
    server = ThreadingHTTPServer(("10.213.43.1", 0), hub.handler())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    variables = {
        "sglang_model_path": path,
        "sglang_model_repository": hub.repository,
        "sglang_model_revision": COMMIT,
        "sglang_model_endpoint": f"http://10.213.43.1:{server.server_port}",
    }
    fleet.brought(**variables)
    fleet.alike(path, "*")
    asked = [ask[1:3] for ask in hub.asked if ask[0] == "GET" and "elsewhere" in ask[1]]
    check(len(asked) == 4 and asked.count(("/elsewhere/model-2.safetensors", f"bytes={20 << 20}-")) == 1, f"{asked}")
    again = fleet.brought(**variables)
    check("changed=1" not in again.text, f"something changed:\n{again.text[-2000:]}")
    server.shutdown()
    fleet.closed()
    return "each file once, the one that was cut from where it was; the other two nodes have theirs from nodes"


@case("Nobody has them, and nobody may ask")
def nobody(fleet: Fleet) -> str:
    run = fleet.bring(sglang_model_path="/srv/models/none")
    run.failed("no node has them", "no repository is known", "Asked: node-2, node-3", "docs/operating.md")
    run = fleet.bring(limit="node-1", sglang_model_path="/srv/models/none", sglang_model_fetch=False)
    run.failed("/srv/models/none does not exist", "Bring the weights there")
    fleet[2].testhosts("cut", "node-2")
    try:
        run = fleet.bring(limit="node-1", sglang_model_path="/srv/models/none")
    finally:
        fleet[2].testhosts("mend", "node-2")
    run.failed("no node has them", "node-2 did not answer")
    fleet.closed()
    return "said, with who was asked and what can be done"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inventory", type=Path)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--client", type=Path)
    options = parser.parse_args()
    if options.client:
        shutil.copytree(client("1.33.0"), options.client)
        os.chmod(options.client, 0o755)
        return 0
    fleet = Fleet(options.inventory.resolve())
    os.chdir(ROOT)
    bad = 0
    for title, function in CASES:
        if options.only and not any(word in title for word in options.only):
            continue
        began = time.monotonic()
        try:
            told = function(fleet)
        except Exception as error:
            bad += 1
            told = f"WRONG: {error}" if isinstance(error, Wrong) else f"WRONG: {traceback.format_exc()}"
        print(f"{title} ({time.monotonic() - began:.0f} s): {told}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
