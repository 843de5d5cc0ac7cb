#!/usr/bin/env python3
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""What one node knows of its servers and its GPUs, as files for the textfile collector of Prometheus' node exporter: one look."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import glob
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Optional

HELP = """\
A timer runs this. It writes two files into the folder (--folder), each whole or not at all:

  sglang_server.prom   of each server on record below --root: what is deployed, what systemd and the supervisor say of it,
                       what its present start says of tuned kernels, and the room on its disks
  sglang_gpu.prom      with --gpu: what nvidia-smi says of the GPUs, and the driver's errors (Xid) in the kernel's log
                       since the boot

nvidia-smi has --smi-timeout seconds. One that hangs inside the driver cannot be killed: it is left alone, no second one is started
beside it, and sglang_gpu_hung is 1. That a whole look did not end shows in the files' age (node_textfile_mtime_seconds).
"""

if "ansible" not in sys.modules:
    # What this shares with the modules lies beside it on a node, where there is no Ansible.
    beside = types.ModuleType("ansible.module_utils")
    beside.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    sys.modules["ansible"] = types.ModuleType("ansible")
    sys.modules["ansible.module_utils"] = beside
sys.dont_write_bytecode = True  # its folder is /etc

from ansible.module_utils import sglang_evidence_log, sglang_node, sglang_smi

COMMAND_TIMEOUT = 10.0
JUDGE_TIMEOUT = 20.0
JUDGE_BYTES = 64 << 20
# Fallbacks show with traffic: a start is judged again whenever its age has doubled, so that all of it costs twice its log.
FIRST_JUDGEMENT = 60.0
MEMORY = "metrics.json"
ACTIVE_STATES = ("active", "reloading", "activating", "deactivating", "inactive", "failed")
PHASES = ("absent", "switched", "committed", "restored")
UNIT = ("ActiveState", "NRestarts", "InvocationID", "ExecMainStartTimestampMonotonic", "MainPID")

# As nvidia-smi writes them. Idle and what somebody set on purpose hold nothing back.
REASONS = (
    "SW Power Cap",
    "HW Slowdown",
    "HW Thermal Slowdown",
    "HW Power Brake Slowdown",
    "Sync Boost",
    "SW Thermal Slowdown",
    "Display Clock Setting",
)
XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]{4,20})\): (\d{1,4})\b")

Labels = dict[str, str]


# --- pages ----------------------------------------------------------------------------------------------------------------


class Page:
    """Metrics in Prometheus' text format. What cannot be read is left out, never a zero."""

    def __init__(self) -> None:
        self.kinds: dict[str, tuple[str, str]] = {}
        self.samples: dict[str, list[tuple[Labels, float]]] = {}

    def add(self, name: str, about: str, value: Optional[float], kind: str = "gauge", /, **labels: str) -> None:
        if value is not None:
            self.kinds.setdefault(name, (kind, about))
            self.samples.setdefault(name, []).append((labels, float(value)))

    def text(self) -> str:
        lines = []
        for name, (kind, about) in self.kinds.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{shown(labels)} {number(value)}" for labels, value in self.samples[name]]
        return "\n".join(lines) + "\n" if lines else ""


def shown(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(value)


def write(path: str, text: str) -> None:
    """Whole or not at all. Not waited for until it is on disk: it is written anew in half a minute, and a disk may be slow."""
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8", errors="replace") as stream:
        stream.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


# --- commands -------------------------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """What a command printed, and the process that did not end in time (0 where it ended)."""

    text: str
    ok: bool
    left: int = 0


def asked(argv: list[str], timeout: float = COMMAND_TIMEOUT) -> Said:
    """Never waits longer: what hangs inside a driver cannot be killed, so it is not waited for."""
    environment = dict(os.environ, LC_ALL="C")
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
    except OSError as error:
        return Said(f"{argv[0]} cannot be run: {error.strerror}", False)
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        return Said("", False, process.pid)
    return Said(out.decode("utf-8", "replace"), process.returncode == 0)


def began(pid: int) -> str:
    """When a process began, in ticks since the boot; empty when it is gone or only its exit status is left."""
    fields = sglang_node.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


class Journal:
    """Entries from journalctl, until `timeout`; what came after it is there the next time, behind the last cursor."""

    def __init__(self, words: list[str], cursor: str, timeout: float) -> None:
        command = ["journalctl", "--quiet", "--no-pager", "--output=json", "--output-fields=MESSAGE", *words]
        self.argv = [*command, f"--after-cursor={cursor}"] if cursor else command
        self.timeout = timeout
        self.cursor = cursor
        self.ok = False

    def __iter__(self) -> Iterator[tuple[float, str]]:
        """Times in seconds since 1970, and texts."""
        try:
            process = subprocess.Popen(self.argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError:
            return
        late = threading.Timer(self.timeout, process.kill)
        late.start()
        try:
            for line in process.stdout or ():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    entry = json.loads(line)
                    said = entry["MESSAGE"]
                    text = said if isinstance(said, str) else bytes(said).decode("utf-8", "replace")
                    at = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
                    self.cursor = entry["__CURSOR"]
                    yield at, text
            self.ok = process.wait() == 0
        finally:
            late.cancel()
            process.kill()


# --- GPUs -----------------------------------------------------------------------------------------------------------------


def first(*values: Optional[float]) -> Optional[float]:
    return next((value for value in values if value is not None), None)


def times(value: Optional[float], factor: float) -> Optional[float]:
    return None if value is None else value * factor


def throttled(card: list) -> dict[str, bool]:
    """By reason, whether it holds the clocks back; empty where nvidia-smi does not say."""
    found = {}
    for section in ("Clocks Event Reasons", "Clocks Throttle Reasons"):  # the second is of drivers before 535
        for reason in REASONS:
            word = sglang_smi.told(card, section, reason) or sglang_smi.told(card, section, "HW Slowdown", reason)
            if word in ("Active", "Not Active"):
                found[reason.lower().replace(" ", "_")] = word == "Active"
    return found


def ecc(card: list) -> dict[str, Optional[float]]:
    """Errors of the memory since the driver was loaded, all of a kind together; None without ECC."""
    counts: dict[str, Optional[float]] = {"corrected": None, "uncorrected": None}
    below = [node for key, _, nodes in card if key == "ECC Errors" for node in nodes if node[0] == "Volatile"]
    for _, _, fields in below:
        for key, value, _ in fields:
            count = sglang_smi.number(value)
            kind = {"Corr": "corrected", "Unco": "uncorrected"}.get(key.partition(" ")[2][:4], "")
            if kind and count is not None:
                counts[kind] = (counts[kind] or 0) + count
    return counts


def gpu_page(text: str) -> Page:
    """From what `nvidia-smi -q` printed."""
    page = Page()
    nodes = sglang_smi.tree(text)
    found = sglang_smi.cards(nodes)
    page.add("sglang_gpu_count", "GPUs that nvidia-smi describes.", len(found))
    driver = sglang_smi.told(nodes, "Driver Version")
    for position, (bus, card) in enumerate(found):
        # The minor number stays the card's own when another one is lost; the place in the list does not.
        minor = sglang_smi.integer(sglang_smi.told(card, "Minor Number"))
        own = {"gpu": str(position if minor is None else minor), "uuid": sglang_smi.told(card, "GPU UUID")}

        def value(*path: str, card: list = card) -> Optional[float]:
            return sglang_smi.number(sglang_smi.told(card, *path))

        name = sglang_smi.told(card, "Product Name")
        page.add("sglang_gpu_info", "A GPU.", 1, **own, name=name, pci_bus_id=bus.lower(), driver=driver)
        fault = bool(sglang_smi.fault(card))
        page.add("sglang_gpu_fault", "1 where nvidia-smi says that the GPU is lost or needs a reset.", fault, **own)
        used = times(first(value("Utilization", "GPU"), value("Utilization", "Gpu")), 0.01)  # older drivers: the second
        page.add("sglang_gpu_utilization_ratio", "Share of time in which a kernel ran, 0 to 1.", used, **own)
        for which, kind in (("Used", "used"), ("Total", "total")):
            memory = times(value("FB Memory Usage", which), 1 << 20)
            page.add(f"sglang_gpu_memory_{kind}_bytes", f"Memory of the GPU, {kind}.", memory, **own)
        power = "GPU Power Readings"
        draw = first(value(power, "Instantaneous Power Draw"), value(power, "Average Power Draw"))
        page.add("sglang_gpu_power_watts", "Power that the GPU draws.", first(draw, value(power, "Power Draw")), **own)
        page.add("sglang_gpu_power_limit_watts", "Power limit in force.", value(power, "Current Power Limit"), **own)
        heat = value("Temperature", "GPU Current Temp")
        page.add("sglang_gpu_temperature_celsius", "Temperature of the GPU.", heat, **own)
        heat = value("Temperature", "Memory Current Temp")
        page.add("sglang_gpu_memory_temperature_celsius", "Temperature of its memory.", heat, **own)
        for section, suffix in (("Clocks", ""), ("Max Clocks", "_max")):
            for clock in ("SM", "Memory"):
                title = f"sglang_gpu_{clock.lower()}_clock{suffix}_hertz"
                page.add(title, f"{clock} clock{' at most' * bool(suffix)}.", times(value(section, clock), 1e6), **own)
        for reason, active in throttled(card).items():
            page.add("sglang_gpu_throttled", "1 while this holds the clocks back.", active, **own, reason=reason)
        for kind, count in ecc(card).items():
            about = "Errors of the GPU's memory since the driver was loaded."
            page.add("sglang_gpu_ecc_errors_total", about, count, "counter", **own, type=kind)
        for kind in ("Pending", "Remapping Failure Occurred"):
            word = {"Yes": 1.0, "No": 0.0}.get(sglang_smi.told(card, "Remapped Rows", kind))
            title = f"sglang_gpu_row_remap_{'pending' if kind == 'Pending' else 'failed'}"
            page.add(title, "1 where rows of the memory wait to be replaced, or could not be.", word, **own)
        link = ("PCI", "GPU Link Info")
        page.add(
            "sglang_gpu_pcie_generation", "PCIe generation now.", value(*link, "PCIe Generation", "Current"), **own
        )
        page.add("sglang_gpu_pcie_lanes", "PCIe lanes now.", value(*link, "Link Width", "Current"), **own)
    return page


def xids(entries: Iterable[tuple[float, str]], known: dict[str, list[float]]) -> dict[str, list[float]]:
    """By "BUS XID": how often, and when last (seconds since 1970), with what was known before."""
    found = {key: list(value) for key, value in known.items()}
    for at, text in entries:
        match = XID.search(text)
        if match:
            count, _ = found.get(f"{match[1].lower()} {match[2]}", (0, 0))
            found[f"{match[1].lower()} {match[2]}"] = [count + 1, at]
    return found


def look_at_gpus(memory: dict[str, Any], timeout: float) -> tuple[Page, dict[str, Any]]:
    """The page, and what to remember: the process that hangs, the errors counted so far, and up to where."""
    left = memory.get("left") or {}
    hung = bool(left) and began(int(left.get("pid") or 0)) == left.get("began")
    clock = time.monotonic()
    said = Said("", False) if hung else asked(["nvidia-smi", "-q"], timeout)
    seconds = time.monotonic() - clock
    if said.left:
        hung, left = True, {"pid": said.left, "began": began(said.left)}
    page = gpu_page(said.text) if not hung else Page()
    read = bool(page.samples.get("sglang_gpu_info"))
    if not read:
        page = Page()  # a count of none would say that there are none
    page.add("sglang_gpu_read_success", "1 where nvidia-smi described a GPU in this look.", read)
    page.add("sglang_gpu_hung", "1 while nvidia-smi does not answer: the driver hangs.", hung)
    page.add("sglang_gpu_read_seconds", "How long nvidia-smi took.", seconds if not hung else None)

    # A counter that starts anew with each boot, as the kernel's log does.
    journal = Journal(["--dmesg", "--boot"], str(memory.get("cursor") or ""), COMMAND_TIMEOUT)
    found = xids(journal, memory.get("xids") or {})
    for key, (count, at) in sorted(found.items()):
        bus, xid = key.split()
        own = {"pci_bus_id": bus, "xid": xid}
        page.add("sglang_gpu_xid_errors_total", "Errors of the driver (Xid) since the boot.", count, "counter", **own)
        page.add("sglang_gpu_xid_last_timestamp_seconds", "When such an error came last, since 1970.", at, **own)
    page.add("sglang_kernel_log_read_success", "1 where the kernel's log could be read to its end.", journal.ok)
    # What a cursor points at may be gone: all is read again.
    kept = {"cursor": journal.cursor, "xids": found} if journal.ok or journal.cursor != memory.get("cursor") else {}
    return page, {**kept, "left": left if hung else {}}


# --- servers --------------------------------------------------------------------------------------------------------------


def seconds_of(stamp: Any) -> Optional[float]:
    """Of the record's UTC."""
    try:
        at = datetime.datetime.strptime(str(stamp), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None
    return at.replace(tzinfo=datetime.timezone.utc).timestamp()


def digits(text: Optional[str]) -> Optional[float]:
    return float(text) if text and text.isdigit() else None


def units_of(name: str) -> dict[str, dict[str, str]]:
    """What systemd says of the server and its supervisor, each asked in one call."""
    names = [f"{name}.service", f"{name}-supervise.timer"]
    said = asked(["systemctl", "show", "-p", ",".join(UNIT), "--", *names])
    blocks = said.text.split("\n\n") if said.ok else []
    parts = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]
    return dict(zip(names, parts))


def server_page(page: Page, record: sglang_node.Record, units: dict[str, dict[str, str]], told: dict[str, Any]) -> None:
    """What is on record of one server, and what systemd and its supervisor say of it. `told` is what was judged of this start."""
    own = {"server": record.name}
    state, entry, lock = record.state(), record.last(), record.lock()
    facts = entry.get("facts") or {}
    by = entry.get("by") or {}
    page.add(
        "sglang_server_info",
        "What is committed on the node.",
        1,
        **own,
        profile=str(facts.get("profile") or ""),
        model=str(facts.get("model") or ""),
        sglang=str(facts.get("sglang") or ""),
        release=os.path.basename(str(facts.get("release") or "")),
        deployment=str(entry.get("id") or ""),
        commit=str(by.get("commit") or ""),
    )
    page.add("sglang_server_committed_timestamp_seconds", "When it was committed.", seconds_of(entry.get("at")), **own)
    for phase in PHASES:
        about = "How far the last run came; 1 for one of them."
        page.add("sglang_server_phase", about, state.get("phase") == phase, **own, phase=phase)
    page.add("sglang_server_gate_closed", "1 while the front refuses requests.", sglang_node.gate_closed(record), **own)
    page.add("sglang_server_locked", "1 while a run of a playbook holds the server's lock.", bool(lock), **own)

    unit = units.get(f"{record.name}.service", {})
    for active in ACTIVE_STATES if unit else ():
        about = "systemd's ActiveState; 1 for one of them."
        page.add("sglang_server_unit_state", about, unit.get("ActiveState") == active, **own, state=active)
    about = "Restarts by systemd since somebody started the server."
    page.add("sglang_server_restarts_total", about, digits(unit.get("NRestarts")), "counter", **own)
    started = digits(unit.get("ExecMainStartTimestampMonotonic"))
    if started:
        at = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) + started / 1e6
        page.add("sglang_server_start_timestamp_seconds", "When the server's process began.", round(at, 1), **own)

    cards = (facts.get("node") or {}).get("gpus") or []
    page.add("sglang_server_gpus", "GPUs of the node when the deployment was proved.", len(cards) or None, **own)

    timer = units.get(f"{record.name}-supervise.timer", {})
    if timer:
        page.add("sglang_supervisor_active", "1 where it looks.", timer.get("ActiveState") == "active", **own)
    memory = sglang_node.read_json(os.path.join(sglang_node.RUN, record.name, "supervise.json"))
    if memory:
        now = sglang_node.uptime()

        def since(name: str) -> float:
            return max(0.0, now - float(memory.get(name) or now))

        about = "Seconds since its last look."
        page.add("sglang_supervisor_look_age_seconds", about, round(since("looked"), 1), **own)
        about = "Seconds for which a server that was well has made no token, by the supervisor; 0 while it starts."
        failing = since("failing_since") if memory.get("healthy") else 0.0
        page.add("sglang_supervisor_failing_seconds", about, round(failing, 1), **own)
        about = "Starts of a server on which systemd had given up, since it was last well for long."
        page.add("sglang_supervisor_tries", about, float(memory.get("tries") or 0), **own)

    tuning = (entry.get("proof") or {}).get("tuning") or {}
    wanted = ((facts.get("tuning") or {}).get("mode") or "none") != "none"
    page.add("sglang_tuning_wanted", "1 where the profile asks for tuned kernels.", wanted, **own)
    if tuning.get("verdict"):
        about = "What the log showed of tuned kernels when the deployment was proved."
        page.add("sglang_tuning_proof_info", about, 1, **own, verdict=str(tuning["verdict"]))
    if told.get("verdict"):
        about = "What the log of the present start shows of tuned kernels."
        page.add("sglang_tuning_verdict_info", about, 1, **own, verdict=told["verdict"])
        about = "Operations that fell back in the present start, without those that are accepted."
        page.add("sglang_tuning_fallback_operations", about, told.get("fallbacks"), **own)
        page.add("sglang_tuning_judged_timestamp_seconds", "When that log was read last.", told.get("at"), **own)

    places = {"weights": facts.get("model_path"), "releases": facts.get("release"), "state": record.folder}
    for what, path in places.items():
        if path and os.path.isabs(str(path)):
            room = room_of(str(path))
            page.add("sglang_disk_available_bytes", "Room that is left on a disk.", room[0], **own, what=what)
            page.add("sglang_disk_size_bytes", "Size of that disk.", room[1], **own, what=what)


def room_of(path: str) -> tuple[float, float]:
    """Bytes that are left, and all, on the disk of a path or its nearest parent."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def due(told: dict[str, Any], invocation: str, deployment: str, up: float) -> bool:
    """Whether a start has to be judged: it never was, its age has doubled since, or another deployment says what is accepted."""
    if not invocation or up < FIRST_JUDGEMENT:
        return False
    fresh = (told.get("invocation"), told.get("deployment")) != (invocation, deployment)
    return fresh or up >= 2 * float(told.get("up") or 0)


def judged(text: bytes, facts: dict[str, Any]) -> dict[str, Any]:
    """As a deployment is judged when it is proved: verdict, and operations that fell back without being accepted."""
    known = sglang_evidence_log.Known(
        str(facts.get("sglang") or ""),
        str(facts.get("flashinfer") or ""),
        facts.get("resolved") or {},
        facts.get("autotune") or {},
        {name: str(value) for name, value in (facts.get("environment") or {}).items()},
        (facts.get("tuning") or {}).get("accept") or [],
    )
    found = sglang_evidence_log.judge(sglang_evidence_log.scan(io.BytesIO(text)), known)
    left = [one for one in found["fallbacks"] if not one.get("explained")]
    return {"verdict": found["verdict"], "fallbacks": len(left)}


def log_of(invocation: str) -> bytes:
    """The log of one start, or as much of its begin as is looked at: kernels are tuned first."""
    command = ["journalctl", "--quiet", "--no-pager", "--all", "--output=short-iso-precise"]
    text = b""
    # systemd's own few lines first: they say that the start's begin is there.
    for field in ("INVOCATION_ID", "_SYSTEMD_INVOCATION_ID"):
        with subprocess.Popen(
            [*command, f"{field}={invocation}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            late = threading.Timer(JUDGE_TIMEOUT, process.kill)
            late.start()
            text += process.stdout.read(JUDGE_BYTES) if process.stdout else b""
            late.cancel()
            process.kill()
    return text


def judge(record: sglang_node.Record, unit: dict[str, str], told: dict[str, Any]) -> dict[str, Any]:
    """What is known of the present start's kernels; of a start that is gone nothing."""
    invocation, entry = unit.get("InvocationID", ""), record.last()
    started = digits(unit.get("ExecMainStartTimestampMonotonic")) or 0.0
    up = time.clock_gettime(time.CLOCK_MONOTONIC) - started / 1e6 if unit.get("ActiveState") == "active" else 0.0
    deployment = str(entry.get("id") or "")
    if told.get("invocation") != invocation:
        told = {}
    if not entry or not due(told, invocation, deployment, up):
        return told
    now = {"invocation": invocation, "deployment": deployment, "up": up, "at": round(time.time(), 1)}
    with contextlib.suppress(OSError):
        now.update(judged(log_of(invocation), entry.get("facts") or {}))
    return now


def servers(root: str) -> list[sglang_node.Record]:
    """All that are on record."""
    paths = glob.glob(os.path.join(glob.escape(root), "*", "state.json"))
    return [sglang_node.Record(root, os.path.basename(os.path.dirname(path))) for path in sorted(paths)]


# --- one look -------------------------------------------------------------------------------------------------------------


def look(folder: str, root: str, gpu: bool, smi_timeout: float, remembered: str) -> None:
    memory = sglang_node.read_json(remembered)
    records = servers(root)
    units = {record.name: units_of(record.name) for record in records}
    told = {name: (memory.get("judged") or {}).get(name) or {} for name in units}
    for name, one in told.items():
        if one.get("invocation") != units[name].get(f"{name}.service", {}).get("InvocationID"):
            told[name] = {}  # of another start

    page = Page()
    for record in records:
        server_page(page, record, units[record.name], told[record.name])
    write(os.path.join(folder, "sglang_server.prom"), page.text())

    path = os.path.join(folder, "sglang_gpu.prom")
    if gpu:
        page, memory["gpu"] = look_at_gpus(memory.get("gpu") or {}, smi_timeout)
        write(path, page.text())
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    # Remembered at once, so that what hangs is never started twice; then what may take longest, for the next look.
    write(remembered, json.dumps(memory))
    memory["judged"] = {r.name: judge(r, units[r.name].get(f"{r.name}.service", {}), told[r.name]) for r in records}
    write(remembered, json.dumps(memory))


def main(argv: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", required=True, metavar="DIR", help="node exporter's folder of text files")
    parser.add_argument("--gpu", action="store_true", help="the node has GPUs")
    parser.add_argument("--smi-timeout", type=float, default=15, metavar="S", help="seconds for nvidia-smi (15)")
    parser.add_argument("--root", default=sglang_node.ROOT, metavar="DIR", help=f"the records ({sglang_node.ROOT})")
    parser.add_argument("--run", default="/run/sglang-metrics", metavar="DIR", help="what it remembers of this boot")
    args = parser.parse_args(argv)
    os.umask(0o022)
    os.makedirs(args.run, mode=0o755, exist_ok=True)
    try:
        look(args.folder, args.root, args.gpu, args.smi_timeout, os.path.join(args.run, MEMORY))
    except OSError as error:
        print(f"<3>No metrics in this look: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
