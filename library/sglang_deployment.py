#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""The node's own record of what is deployed, and the switch from one deployment to the next."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_deployment
short_description: Switch a server to another deployment, commit it, or put the last one back
version_added: "0.1.0"
description:
  - One server is one systemd unit. The unit's text holds the command line and the environment, so it is the whole of what runs;
    its digest names the deployment and is put into the process's environment as E(SGLANG_DEPLOYMENT).
  - What runs is read from the main process itself. A run that was killed between writing the unit and restarting is therefore
    seen and finished by the next one.
  - C(/var/lib/sglang/<name>/state.json) says how far a deployment came (V(switched), V(committed), V(restored));
    C(deployments/<id>.json), the manifest, keeps each committed one with its unit, so that it can come back.
  - C(lock.json) beside them keeps a second operator out. An action plugin of the same name says who the operator is.
  - Where a front stands before the server (C(<name>-front.service)), its gate is closed before the switch and opened by
    O(state=committed) or O(state=restored), so that no client meets a server that was not proved.
options:
  name:
    description: Name of the server, which is the unit's name without C(.service).
    type: str
    required: true
  state:
    description:
      - V(begun) takes the lock, or says who has it and since when.
      - V(inspected) tells what is recorded and what runs, and with O(deployment) what that one was.
      - V(switched) writes the unit and restarts the server, unless both are already as wanted. Requests in flight have
        O(drain_timeout) to finish. Returns when the new process is executed; M(sglang_ready) waits until it serves.
      - V(withdrawn) lets requests in flight end and stops the server, where V(switched) would restart it. For the head of several
        nodes that serve one model, before any of them is switched; V(switched) goes on from there.
      - V(committed) records that the deployment which runs was proved, forgets what is beyond O(keep), and removes releases below
        O(releases) that no deployment on record and no process needs.
      - V(restored) puts the last committed deployment back and restarts it; where there is none, stops and removes the unit.
      - V(ended) gives the lock back, if it is this run's. V(committed) does so too with O(ends).
      - V(absent) stops the server and removes its unit, its record and its home, and releases that nothing else needs.
    type: str
    choices: [begun, inspected, withdrawn, switched, committed, restored, ended, absent]
    required: true
  unit:
    description:
      - Text of the unit. C(@DEPLOYMENT@) in it becomes the digest of the text. Needed by V(withdrawn), V(switched), V(committed).
    type: str
  facts:
    description:
      - What the manifest keeps beside the unit, such as profile, release, url and model. No secrets.
      - C(url) and C(start_timeout) in it are what the supervisor on the node goes by.
    type: dict
    default: {}
  proof:
    description: What was seen of this deployment, for its manifest. C(smoke), C(tuning), C(times) (seconds) and C(stages).
    type: dict
    default: {}
  deployment:
    description:
      - Id of a deployment on record for V(inspected). V(previous) is the newest that differs from what is committed.
      - For V(restored), the one to go back to where what was committed since is taken back; V(none) for no deployment at all.
    type: str
    default: ""
  because:
    description: Reasons outside of this node for V(withdrawn) and V(switched) to restart a server that runs as wanted.
    type: list
    elements: str
    default: []
  kill:
    description: Whether what runs is ended at once by V(switched) and V(restored), since nothing in flight is its own.
    type: bool
    default: false
  reason:
    description: Why the deployment is put back. Kept in the record.
    type: str
    default: ""
  drain_timeout:
    description:
      - Seconds that requests in flight have to finish before the server is stopped. A front takes no new ones meanwhile; without
        one the engine itself finishes what it has, within the unit's TimeoutStopSec.
    type: int
    default: 300
  proof_timeout:
    description:
      - Seconds that the proof may take. A run that has not committed when drain, start and proof should be over is taken for dead,
        and the supervisor on the node puts the last deployment back.
    type: int
    default: 600
  read_ahead:
    description:
      - Whether V(switched), where it restarts, has the weights (C(*.safetensors) in the facts' C(model_path)) read into the page
        cache beside drain, stop and the engine's own beginning. Not where memory has no room for all of them, or they are there.
      - It is done by the transient unit C(<name>-read-ahead), which ends by itself.
    type: bool
    default: false
  keep:
    description: How many committed deployments are kept on record.
    type: int
    default: 10
  releases:
    description: Folder of the releases, for V(committed) and V(absent) to collect what nothing needs. Without it nothing is.
    type: path
  ends:
    description: Whether V(committed) ends the run, so that it gives the lock back as well. A commit that fails does not.
    type: bool
    default: false
  lock_timeout:
    description: Seconds without a sign of life after which a run that holds the lock is taken for dead.
    type: int
    default: 7200
  break_lock:
    description:
      - The run whose lock is taken over whatever its age, as C(held.run) names it; V(any) for whoever holds it.
    type: str
    default: ""
  locked:
    description: Whether this run took the lock before, so that it stops where the lock is gone.
    type: bool
    default: false
  by:
    description: Who runs this. C(user), C(host), C(pid), C(started) and C(commit). Filled by the action plugin.
    type: dict
    default: {}
  root:
    description: Folder of the records of all servers.
    type: path
    default: /var/lib/sglang
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Tells what would be written and restarted; takes no lock., details: []}
  diff_mode: {support: full, description: Shows the unit before and after., details: []}
"""

EXAMPLES = r"""
- name: Switch
  sglang_deployment:
    name: sglang
    state: switched
    unit: "{{ lookup('ansible.builtin.template', 'sglang.service.j2') }}"

- name: What runs there?
  sglang_deployment:
    name: sglang
    state: inspected
  register: found

- name: What ran before?
  sglang_deployment:
    name: sglang
    state: inspected
    deployment: previous
"""

RETURN = r"""
phase:
  description: V(absent) (nothing recorded), V(switched) (not yet proved, or a run was interrupted), V(committed) or V(restored).
  type: str
  returned: always
digest:
  description: Digest of the wanted unit; of the last committed one when none is given.
  type: str
  returned: always
running:
  description:
    - The main process before this run. C(active), C(pid), C(digest) (from its environment), C(invocation_id), C(restarts)
      and C(since).
  type: dict
  returned: always
reasons:
  description: Why something was, or would be, done.
  type: list
  elements: str
  returned: always
restarted:
  description: Whether the server was, or would be, restarted.
  type: bool
  returned: always
committed:
  description:
    - The deployment that is committed; with O(state=restored) the one that was put back. C(id), C(digest), C(at) (UTC), C(by)
      and the given O(facts). Empty when there is none.
  type: dict
  returned: always
found:
  description: Manifest of the deployment asked for, with C(unit), C(facts), C(proof) and C(by).
  type: dict
  returned: with O(deployment)
times:
  description: Seconds, C(drain_s) (the front's gate closed until the last request ended) and C(stop_s) (stop and exec of the new).
  type: dict
  returned: when restarted by O(state=switched)
front:
  description: Whether the node has a front before this server, or something left of one. Its unit, configuration or keys.
  type: bool
  returned: always
read_ahead:
  description:
    - C(started), C(why) (not), and in GiB C(weights), C(lacking) (of them in the page cache) and C(available) (memory), unless the
      weights cannot be read.
  type: dict
  returned: when restarted by O(state=switched), with O(read_ahead)
unit:
  description: As given.
  type: str
  returned: by O(state=switched), from the action plugin
facts:
  description: As given.
  type: dict
  returned: by O(state=switched), from the action plugin
cut_off:
  description: Workers of the front that still had requests when O(drain_timeout) was over.
  type: int
  returned: when restarted by O(state=switched)
aside:
  description: Where hand-made units and drop-ins were moved to, so that nothing of somebody's work is lost.
  type: list
  elements: str
  returned: when there were any
held:
  description: Who holds the lock, C(run), C(by), C(at) (UTC) and C(silent_s), seconds since the last sign of life.
  type: dict
  returned: when somebody else holds it
took_over:
  description: Why a lock that was there no longer counted, and whose it was.
  type: str
  returned: when one was taken over
ended:
  description: Whether the run has ended, so that the lock is nobody's.
  type: bool
  returned: by O(state=committed) with O(ends)
collected:
  description: Releases that were removed.
  type: list
  elements: str
  returned: with O(releases)
others:
  description: Other servers on record on this node, name to the folder of the model that they serve.
  type: dict
  returned: with O(state=absent)
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable

from ansible.module_utils import sglang_node as node
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_node import HEADER, Record, authentic, read_text, run_of, stamp, whole, write

# Where the role keeps what stands beside the servers.
SETTINGS = "/etc/sglang"
# Folders beside those of the servers.
RESERVED = ("models", "pristine")
PROPERTIES = (
    "ActiveState",
    "MainPID",
    "InvocationID",
    "NRestarts",
    "ActiveEnterTimestamp",
    "UnitFileState",
    "NeedDaemonReload",
    "DropInPaths",
)
# What a run may need beside drain, stop, start and proof; then the supervisor takes it for dead.
MARGIN_SECONDS = 120
# Of the memory that is available, what weights may fill.
ROOM = 0.8
# Reads files into the page cache, eight at once as the engine's loader does. Plainly: of posix_fadvise(WILLNEED) the kernel takes
# some megabytes at a time and drops the rest without a word.
READER = """
import concurrent.futures, os, sys

def read(path):
    buffer = bytearray(4 << 20)
    with open(path, "rb", 0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(buffer):
            pass

with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(read, sys.argv[1:]))
"""
# Seconds after which whatever still reads is of no use.
LONGEST_READ = 900
# The engine's own end once it is told to stop, as the unit's TimeoutStopSec has it beside the drain.
END_SECONDS = 30


def plan(wanted: str, digest: str, on_disk: str, running: dict, beside: Iterable[str] = ()) -> list[str]:
    """Why the server has to be switched; empty when it runs as wanted. Decided from facts alone.

    `beside` are reasons that lie outside the unit's text: a mask, a drop-in.
    """
    reasons = list(beside)
    if not on_disk and not reasons:
        reasons.append("there is no unit yet")
    elif on_disk and on_disk != wanted:
        # Even if what runs carries the right digest: it may have been started from what is on disk now.
        reasons.append("the unit differs")
    if running["active"] not in ("active", "activating", "reloading"):
        reasons.append(f"the server is {running['active']}")
    elif running["digest"] != digest:
        ran = running["digest"] or "something this project did not start"
        reasons.append(f"what runs is {ran}, wanted is {digest}")
    return reasons


def foreign(on_disk: str, last: dict) -> bool:
    """Whether the unit on disk was made by somebody else, and is kept nowhere."""
    return bool(on_disk) and not last and HEADER not in on_disk.split("\n", 1)[0]


def own_drop_ins(shown: str, unit: str) -> list[str]:
    """Drop-ins that somebody made for this very unit; those for all services are the administrator's business."""
    return [path for path in shown.split() if os.path.basename(os.path.dirname(path)) == unit + ".d"]


def previous(entries: list[dict], last: dict) -> dict:
    """The newest deployment that differs from what is committed."""
    older = [entry for entry in entries if int(entry["id"]) < int(last.get("id") or 0)]
    return next((entry for entry in older if entry["digest"] != last.get("digest")), {})


def needed(releases: str, texts: Iterable[str]) -> set[str]:
    """Names of the releases that are named in texts: manifests, units, command lines."""
    pattern = re.compile(re.escape(releases.rstrip("/")) + r"/([^/\s\"'\0:]+)")
    return {name for text in texts for name in pattern.findall(text)}


def lacking(fincore: str, sizes: list[int]) -> int:
    """Bytes of files that the page cache lacks, by `fincore --bytes --output RES`; all of them where it does not tell."""
    resident = [int(word) for word in fincore.split() if word.isdigit()]
    if len(resident) != len(sizes):
        return sum(sizes)
    return sum(max(0, size - there) for size, there in zip(sizes, resident))


def why_not(weights: int, missing: int, available: int) -> str:
    """Why weights are not read ahead, from bytes; empty when they are to be."""
    if not weights:
        return "the model's folder has no safetensors files"
    if not missing:
        return "they are in memory"
    if weights > ROOM * available:
        return f"memory has no room: {available / 2**30:.1f} GiB are available, and {1 - ROOM:.0%} of it stay free"
    return ""


def diff(before: str, after: str, path: str) -> dict:
    """A unit of this project never carries secrets; what somebody wrote into one by hand may, so that is not shown."""
    by_hand = f"# edited by hand: sha256 {hashlib.sha256(before.encode()).hexdigest()[:12]}\n"
    return {
        "before_header": path,
        "after_header": path,
        "before": before if not before or authentic(before) else by_hand,
        "after": after,
    }


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def told(entry: dict) -> dict:
    """What of a manifest goes back to the play."""
    if not entry:
        return {}
    return {
        "id": entry["id"],
        "digest": entry["digest"],
        "at": entry["at"],
        "by": entry.get("by", {}),
        **entry["facts"],
    }


def holder(held: dict, silent: float) -> str:
    by = held.get("by", {})
    who = f"{by.get('user') or 'somebody'} on {by.get('host') or 'another machine'}"
    commit = f", commit {by['commit']}" if by.get("commit") else ""
    return f"{who} (pid {by.get('pid', 0)}{commit}) since {held.get('at', 'unknown')}, last sign of life {silent:.0f} s ago"


class Server:
    """One unit and its record; a method a state, each returns what it adds to the result."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.dry: bool = module.check_mode
        self.name: str = module.params["name"]
        self.unit_name = self.name + ".service"
        self.unit_path = node.unit_path(self.name)
        self.record = Record(module.params["root"], self.name)
        self.shown = node.show(self.unit_name, PROPERTIES)
        self.masked = node.masked(self.unit_path)
        self.on_disk = "" if self.masked else read_text(self.unit_path)
        self.drop_ins = own_drop_ins(self.shown.get("DropInPaths", ""), self.unit_name)
        self.running = self._running()
        self.last = self.record.last()
        self.phase = self.record.state()["phase"]
        if module.params["unit"]:
            self.digest, self.wanted = stamp(module.params["unit"])
        else:
            self.digest, self.wanted = self.last.get("digest", ""), self.last.get("unit", "")

    # --- what is there

    def _running(self) -> dict:
        pid = int(self.shown.get("MainPID") or 0)
        return {
            "active": self.shown.get("ActiveState", "unknown"),
            "pid": pid,
            "digest": (node.running_digest(pid) if pid else "") or "",
            "invocation_id": self.shown.get("InvocationID", ""),
            "restarts": int(self.shown.get("NRestarts") or 0),
            "since": self.shown.get("ActiveEnterTimestamp", ""),
        }

    def beside(self) -> list[str]:
        reasons = ["the unit was masked by hand"] if self.masked else []
        return reasons + [f"the drop-in {path} changes the unit" for path in self.drop_ins]

    def differs(self, entry_unit: str, digest: str) -> list[str]:
        return plan(entry_unit, digest, self.on_disk, self.running, self.beside())

    def of_a_front(self) -> list[str]:
        return [
            os.path.join(node.UNITS, node.front(self.name)),
            *(os.path.join(SETTINGS, self.name, name) for name in ("front.conf", "keys.conf")),
        ]

    # --- the lock

    def refuse_foreign(self) -> None:
        if foreign(self.on_disk, self.last):
            self.module.fail_json(
                msg=f"{self.unit_path} was not written by this project, and nothing would bring it back. Move it away, or choose "
                "another sglang_server_name."
            )

    def begun(self) -> dict:
        self.refuse_foreign()
        held, run = self.record.lock(), run_of(self.params["by"])
        result: dict = {"reasons": []}
        if not held and os.path.exists(self.record.lock_file):
            held = {"at": "unknown"}
        if held and held.get("run") != run:
            silent = node.uptime() - float(held.get("seen") or 0)
            why = node.forsaken(held, node.boot(), node.uptime(), self.params["lock_timeout"])
            if not why and self.params["break_lock"] in ("any", held["run"]):
                why = "it was broken on demand"
            if not why:
                self.module.fail_json(
                    msg=f"{self.name} is being deployed by {holder(held, silent)}. Wait for it to end. If it is dead, take its "
                    "lock: -e sglang_server_break_lock=any",
                    held={**{key: held.get(key) for key in ("run", "by", "at")}, "silent_s": round(silent, 1)},
                )
            result["took_over"] = f"the lock of {holder(held, silent)} no longer counts: {why}"
            if not self.dry:
                self.record.free()
        if not self.dry and held.get("run") != run and not self.record.take(self.params["by"]):
            self.module.fail_json(msg=f"Somebody took the lock of {self.name} at this moment. Run again.", held={})
        return result

    def ended(self) -> dict:
        if self.record.lock().get("run") == run_of(self.params["by"]) and not self.dry:
            self.record.free()
            # Where nothing was deployed, the lock was all that was there.
            with contextlib.suppress(OSError):
                os.rmdir(self.record.folder)
                os.rmdir(self.params["root"])
        return {"reasons": []}

    def hold(self) -> None:
        """Go on only while nobody took the lock over, and say that this run lives."""
        held = self.record.lock()
        if self.dry or not (held or self.params["locked"]):
            return  # a plan, or a role that is used alone
        if not held:
            self.module.fail_json(
                msg=f"The lock of {self.name} was taken over by a run that has ended since. This run leaves the server to it."
            )
        if held.get("run") != run_of(self.params["by"]):
            silent = node.uptime() - float(held.get("seen") or 0)
            self.module.fail_json(
                msg=f"The lock of {self.name} was taken over by {holder(held, silent)}; this run stops and leaves the server to it."
            )
        with contextlib.suppress(OSError):  # a full disk is told by what has to be written
            self.record.seen()

    # --- the switch

    def verify(self, text: str) -> None:
        """Let systemd judge the unit before anything is touched."""
        verified = f"/run/{self.name}-{os.getpid()}.service"
        write(verified, text)
        code, out, err = self.module.run_command(["systemd-analyze", "verify", "--man=no", verified])
        os.unlink(verified)
        if code:
            self.module.fail_json(msg=f"systemd refuses the unit of {self.name}: {(err or out).strip()}")

    def under_way(self, seconds: float) -> None:
        """Note that a run has the server in its hands, and how long it is believed to live without another word."""
        facts = self.params["facts"]
        self.record.write_state(
            phase="switched",
            digest=self.digest,
            before=self.last.get("id", ""),
            url=facts.get("url", ""),
            start_timeout=self.start_timeout(),
            proof_timeout=self.params["proof_timeout"],
            boot=node.boot(mark=True),
            deadline=round(node.uptime() + seconds + MARGIN_SECONDS, 1),
        )
        self.phase = "switched"

    def start_timeout(self) -> float:
        return float(self.params["facts"].get("start_timeout") or 1800)

    def set_aside(self) -> list[str]:
        """Move drop-ins, and keep a unit that somebody edited, where its author finds it again."""
        kept = []
        folder = os.path.join(self.record.folder, "aside", node.now().replace(":", ""))
        if self.on_disk and not authentic(self.on_disk):
            kept.append(os.path.join(folder, self.unit_name))
            write(kept[-1], self.on_disk, 0o600)  # somebody may have written a secret into it
        for path in self.drop_ins:
            kept.append(os.path.join(folder, os.path.basename(path)))
            write(kept[-1], read_text(path), 0o600)
            os.unlink(path)
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(path))
        return kept

    def drain(self) -> tuple[float, int]:
        """Seconds that the front's drain took, and its workers that still had requests then; nothing without a front."""
        return node.drain(self.record, self.params["drain_timeout"]) if node.front_runs(self.name) else (0.0, 0)

    def withdrawn(self) -> dict:
        """The head of a replica goes first: what it has in hand needs the others until it has ended."""
        self.refuse_foreign()
        self.hold()
        reasons = self.differs(self.wanted, self.digest) + self.params["because"]
        runs = self.running["active"] in ("active", "activating", "reloading")
        result: dict = {"reasons": reasons if runs else []}
        if not (reasons and runs):
            return result
        result["changed"] = True
        if not self.dry:
            self.verify(self.wanted)
            # First the record, as with a switch: the supervisor puts back what a run that is killed here left behind.
            self.under_way(2 * self.params["drain_timeout"] + END_SECONDS)
            _seconds, result["cut_off"] = self.drain()
            if result["cut_off"]:
                node.end(self.name)
            node.systemctl("stop", self.unit_name)
        return result

    def switched(self) -> dict:
        self.refuse_foreign()
        self.hold()
        reasons = self.differs(self.wanted, self.digest) + self.params["because"]
        result: dict = {"reasons": reasons}
        disabled = self.shown.get("UnitFileState") not in ("enabled", "enabled-runtime")
        if not reasons and disabled:
            result.update(changed=True, reasons=["the unit does not start at boot"])
            if not self.dry:
                node.systemctl("enable", "--quiet", self.unit_name)
        elif reasons:
            result.update(changed=True, restarted=True)
            if not self.dry:
                self.verify(self.wanted)
                # First the record: a run that is killed from here on is known to have been under way.
                self.under_way(2 * self.params["drain_timeout"] + END_SECONDS)
                if self.params["read_ahead"]:
                    result["read_ahead"] = self.read_ahead()
                seconds, cut_off = self.drain()
                aside = self.set_aside()
                if aside:
                    result["aside"] = aside
                began = time.monotonic()
                node.keep_unit(self.name)
                # What a front's drain left over has had its time.
                kill = cut_off > 0 or self.params["kill"]
                node.put(self.name, self.wanted, self.record, self.params["facts"].get("url", ""), kill=kill)
                self.under_way(self.start_timeout() + self.params["proof_timeout"])
                result["times"] = {"drain_s": round(seconds, 1), "stop_s": round(time.monotonic() - began, 1)}
                result["cut_off"] = cut_off
        elif self.phase == "switched" and not self.dry:
            # It was interrupted; this run goes on from here, with time of its own, and nobody meets what was not proved.
            self.under_way(self.start_timeout() + self.params["proof_timeout"])
            if node.front_runs(self.name):
                node.close_gate(self.record)
        if self.on_disk != self.wanted:
            result["diff"] = diff(self.on_disk, self.wanted, self.unit_path)
        return result

    def read_ahead(self) -> dict:
        """Begin to read the weights that the new server will load. What stands against it is told, not raised: it only helps."""
        folder = glob.escape(self.params["facts"].get("model_path") or "")
        paths = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
        try:
            sizes = [os.path.getsize(path) for path in paths]
        except OSError as error:
            # The deployment's own look at the model refuses it, where it matters; a rollback's weights may be gone since.
            return {"started": False, "why": f"{error.filename} cannot be read: {error.strerror}"}
        # util-linux's. Not every file system tells by preadv2(RWF_NOWAIT): overlayfs does not.
        argv = ["fincore", "--bytes", "--noheadings", "--output", "RES", *paths]
        out = self.module.run_command(argv)[1] if shutil.which("fincore") else ""
        weights, missing = sum(sizes), lacking(out, sizes)
        found = re.search(r"^MemAvailable:\s+(\d+) kB", read_text("/proc/meminfo"), re.M)
        available = int(found[1]) << 10 if found else 0
        why = why_not(weights, missing, available)
        if not why:
            unit = f"{self.name}-read-ahead"
            node.systemctl("stop", f"{unit}.service")  # of a run before, for other weights perhaps
            properties = ["Nice=19", f"RuntimeMaxSec={LONGEST_READ}", "ProtectSystem=strict", "PrivateNetwork=yes"]
            words = ["--quiet", "--collect", f"--unit={unit}", *(f"--property={one}" for one in properties)]
            # On one line: systemd writes the unit to a file, and a line break would end its command.
            program = [sys.executable, "-I", "-c", f"exec({READER!r})"]
            code, _, err = self.module.run_command(["systemd-run", *words, *program, *paths])
            why = f"systemd-run failed: {err.strip()}" if code else ""
        bytes_of = {"weights": weights, "lacking": missing, "available": available}
        return {"started": not why, "why": why, **{name: round(size / 2**30, 2) for name, size in bytes_of.items()}}

    def committed(self) -> dict:
        self.hold()
        facts = self.params["facts"]
        why = self.differs(self.wanted, self.digest)
        if why and not self.dry:
            self.module.fail_json(
                msg=f"What runs as {self.name} is not what was proved: {'; '.join(why)}. Somebody, or the supervisor after its "
                "deadline, changed it meanwhile. Run again."
            )
        # A run that was killed after it wrote the manifest, before it said so, left the newest.
        recorded: list[dict] = [self.last, *self.record.entries()[:1]]
        same = next((e for e in recorded if e.get("digest") == self.digest and e.get("facts") == facts), {})
        self.last = same or self.last
        result: dict = {"reasons": []}
        if not same or self.phase != "committed":
            result.update(
                changed=True, reasons=["the record is of an interrupted run" if same else "this deployment is new"]
            )
            if not self.dry:
                if not same:
                    proof = self.params["proof"]
                    if not proof.get("smoke") and self.last.get("digest") == self.digest:
                        proof = self.last.get("proof", {})  # what runs on was proved when it was started
                    beside = {"by": self.params["by"], "proof": proof}
                    self.last = self.record.add(self.digest, self.wanted, facts, self.params["keep"], **beside)
                self.record.write_state(phase="committed", digest=self.digest, deployment=self.last["id"])
                self.phase = "committed"
        if not self.dry:
            node.open_gate(self.record)
            result["collected"] = self.collect()
        if self.params["ends"]:
            self.ended()
            result["ended"] = True
        return result

    def restored(self) -> dict:
        """A switch that was refused before it touched anything leaves a healthy server, or somebody else's unit, as it was."""
        self.hold()
        reason = self.params["reason"] or "asked for"
        result: dict = {"reasons": [reason]}
        revoked = self.revoked()
        known = bool(self.last)
        # One whose release was deleted cannot come back; an older one may.
        self.last = next((entry for entry in [self.last, *self.record.entries()] if entry and whole(entry)), {})
        if known and not self.last:
            if not self.dry:
                node.open_gate(self.record)
            self.module.fail_json(
                msg=f"no deployment of {self.name} on record can come back: their releases are gone. What runs was left "
                "as it is. Deploy once more what should serve."
            )
        self.digest, self.wanted = self.last.get("digest", ""), self.last.get("unit", "")
        if self.last:
            untouched = not self.differs(self.wanted, self.digest)
        else:
            # Without a record that this run switched, what runs is not its work.
            ours = self.phase == "switched" or revoked
            untouched = not self.on_disk or foreign(self.on_disk, self.last) or not ours
        result.update(changed=not untouched, restarted=bool(self.last) and not untouched)
        if not untouched and not self.dry:
            if self.last:
                with contextlib.suppress(OSError):  # service before bookkeeping, on a full disk too
                    self.set_aside()
                # What was never proved has nobody's requests that count.
                kill = self.running["digest"] != self.digest or self.params["kill"]
                try:
                    node.put(self.name, self.wanted, self.record, self.last["facts"].get("url", ""), kill=kill)
                except OSError:
                    node.open_gate(self.record)
                    raise
            else:
                self.remove()
        if not self.dry:
            if self.last and (not untouched or self.phase == "switched"):
                phase = "committed" if untouched else "restored"
                with contextlib.suppress(OSError):
                    self.record.write_state(phase=phase, digest=self.digest, deployment=self.last["id"], reason=reason)
                    self.phase = phase
            elif not self.last and not untouched:
                with contextlib.suppress(OSError):
                    self.record.write_state(phase="restored", digest="", deployment="", reason=reason)
                    self.phase = "restored"
            node.open_gate(self.record)
        result["diff"] = diff(self.on_disk, self.wanted, self.unit_path)
        return result

    def revoked(self) -> bool:
        """Whether what was committed is taken back, since another node of its replica could not: its manifest goes."""
        asked = self.params["deployment"]
        if not asked:
            return False
        number = int(asked) if asked.isdigit() else 0
        newer = [one for one in self.record.ids() if int(one) > number]
        if newer and not self.dry:
            self.record.forget(newer)
        self.last = self.record.entry(asked)
        return bool(newer)

    def remove(self) -> None:
        if self.on_disk or self.masked:
            node.systemctl("disable", "--quiet", "--now", self.unit_name)
            for path in (self.unit_path, self.unit_path + ".before"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            node.systemctl("daemon-reload")
            node.systemctl("reset-failed", self.unit_name)

    # --- looking and cleaning

    def inspected(self) -> dict:
        asked = self.params["deployment"]
        if not asked:
            return {"reasons": []}
        entries = self.record.entries()
        if asked == "previous":
            found = previous(entries, self.last)
        else:
            number = int(asked) if asked.isdigit() else 0
            found = next((entry for entry in entries if int(entry["id"]) == number), {})
        if not found:
            known = ", ".join(
                f"{entry['id']} ({entry['facts'].get('profile', '')}, {entry['at']})" for entry in entries
            )
            what = "no deployment before the one that is committed" if asked == "previous" else f"no deployment {asked}"
            self.module.fail_json(msg=f"{self.name} has {what} on record. On record: {known or 'none'}.")
        if not whole(found):
            self.module.fail_json(
                msg=f"Deployment {found['id']} of {self.name} cannot come back: {found['facts'].get('release')} is gone from the "
                "node. Deploy it again from its profile, or choose another."
            )
        return {"reasons": [], "found": found}

    def absent(self) -> dict:
        """All but the lock, which keeps others out until this run ends."""
        self.hold()
        result: dict = {"reasons": []}
        inside = [os.path.join(self.record.folder, name) for name in _listed(self.record.folder) if name != "lock.json"]
        there = [path for path in [self.unit_path, *inside, os.path.join(node.RUN, self.name)] if os.path.lexists(path)]
        if self.on_disk and foreign(self.on_disk, self.last):
            there.remove(self.unit_path)  # somebody else's
        if there:
            result.update(changed=True, reasons=[f"{path} is there" for path in there])
        if there and not self.dry:
            if self.unit_path in there:
                _seconds, cut_off = self.drain()
                if cut_off:
                    node.end(self.name)
                self.remove()
            for path in there:
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
            node.open_gate(self.record)
            self.last, self.phase = {}, "absent"
        result["others"] = self.others()
        if not self.dry:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.unit_path + ".before")
            result["collected"] = self.collect()
            result["changed"] = bool(there or result["collected"])
        return result

    def others(self) -> dict[str, str]:
        # One that is being deployed for the first time has a lock and no manifest.
        root = glob.escape(self.params["root"])
        found = [path for name in ("deployments", "lock.json") for path in glob.glob(os.path.join(root, "*", name))]
        names = sorted({os.path.basename(os.path.dirname(path)) for path in found} - {self.name})
        last = {name: Record(self.params["root"], name).last() for name in names}
        return {name: entry.get("facts", {}).get("model_path", "") for name, entry in last.items()}

    def collect(self) -> list[str]:
        """Remove releases that no manifest, unit or process names; none while somebody builds or deploys who may need one soon."""
        releases = self.params["releases"]
        if not releases or not os.path.isdir(releases):
            return []
        for other in self.others():
            held = Record(self.params["root"], other).lock()
            if held and not node.forsaken(held, node.boot(), node.uptime(), self.params["lock_timeout"]):
                return []
        collected = []
        try:
            lock = open(os.path.join(releases, ".lock"), "w", encoding="utf-8")  # noqa: SIM115 (closed below)
        except OSError as error:
            if error.errno == errno.EROFS:
                return []  # shared by a node that builds them, and collects them
            raise
        with lock as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return []
            keep = needed(releases, self.texts())
            for name in sorted(os.listdir(releases)):
                path = os.path.join(releases, name)
                if name not in keep and os.path.isdir(path) and not os.path.islink(path):
                    # The mark first: what is cut off in the middle is no release any more.
                    with contextlib.suppress(OSError):
                        open(os.path.join(path, "incomplete"), "w", encoding="utf-8").close()
                    shutil.rmtree(path, ignore_errors=True)
                    collected.append(path)
        return collected

    def texts(self) -> Iterable[str]:
        root = glob.escape(self.params["root"])
        for pattern in (f"{root}/*/deployments/*.json", f"{node.UNITS}/*.service", "/proc/[0-9]*/cmdline"):
            for path in glob.glob(pattern):
                with contextlib.suppress(OSError):
                    yield read_text(path)


STATES = ("begun", "inspected", "withdrawn", "switched", "committed", "restored", "ended", "absent")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": list(STATES), "required": True},
            "unit": {"type": "str"},
            "facts": {"type": "dict", "default": {}},
            "proof": {"type": "dict", "default": {}},
            "deployment": {"type": "str", "default": ""},
            "because": {"type": "list", "elements": "str", "default": []},
            "kill": {"type": "bool", "default": False},
            "reason": {"type": "str", "default": ""},
            "drain_timeout": {"type": "int", "default": 300},
            "proof_timeout": {"type": "int", "default": 600},
            "read_ahead": {"type": "bool", "default": False},
            "keep": {"type": "int", "default": 10},
            "releases": {"type": "path"},
            "ends": {"type": "bool", "default": False},
            "lock_timeout": {"type": "int", "default": 7200},
            "break_lock": {"type": "str", "default": ""},
            "locked": {"type": "bool", "default": False},
            "by": {"type": "dict", "default": {}},
            "root": {"type": "path", "default": node.ROOT},
        },
        required_if=[("state", name, ["unit"]) for name in ("withdrawn", "switched", "committed")],
        supports_check_mode=True,
    )
    os.umask(0o022)
    if module.params["name"] in RESERVED:
        module.fail_json(
            msg=f"A server cannot be named {module.params['name']}: {module.params['root']} has a folder of that name."
        )
    try:
        server = Server(module)
        result = getattr(server, module.params["state"])()
    except OSError as error:
        module.fail_json(
            msg=f"{module.params['name']} could not be {module.params['state']}: {error.filename or 'the node'}: {error.strerror}. "
            "Mend that (df -h, df -i) and run again."
        )
    module.exit_json(
        phase=server.phase,
        digest=server.digest,
        running=server.running,
        committed=told(server.last),
        front=any(os.path.lexists(path) for path in server.of_a_front()),
        **{"changed": False, "restarted": False, **result},
    )


if __name__ == "__main__":
    main()
