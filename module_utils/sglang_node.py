# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""What stands on a node beside a server: its record of deployments, the operator's lock, the unit, the front's gate.

The module sglang_deployment and the supervisor that runs on the node (roles/sglang_server/files/supervise.py) share it, so nothing
of Ansible is imported here. Plain Python 3.9. Times that are compared are seconds since the node booted, with what tells the boot
beside them: the wall clock may be set back.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import glob
import hashlib
import json
import os
import re
import subprocess
import time
import uuid
from collections.abc import Iterable
from typing import Optional

ROOT = "/var/lib/sglang"
RUN = "/run/sglang"
UNITS = "/etc/systemd/system"
# In the first line of every unit of this project.
HEADER = "Written by sglang-rtxpro"
# In a unit's text, where its digest comes.
PLACEHOLDER = "@DEPLOYMENT@"
GATE = "closed"
UPSTREAM = "upstream.conf"
NEW = ".new"  # of a file until it is whole


# --- files and clocks -----------------------------------------------------------------------------------------------------


def now() -> str:
    """UTC for people; nothing is decided by it."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def uptime() -> float:
    """Seconds since the node booted, sleep included. In a container, since its own first process began."""
    ticks = int(read_text("/proc/1/stat").rsplit(")", 1)[-1].split()[19])
    return float(read_text("/proc/uptime").split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def boot(mark: bool = False) -> str:
    """What tells this boot from others; empty when nothing was marked in it. `mark` makes the mark.

    A file in /run, since the kernel's own boot_id is another one inside a unit that has ProtectKernelTunables, on a container.
    """
    path = os.path.join(RUN, "boot")
    if mark and not os.path.exists(path):
        create(path, uuid.uuid4().hex + "\n")
    return read_text(path).strip()


def read_text(path: str) -> str:
    """A file's text; empty when it is not there."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def read_json(path: str) -> dict:
    """A record; empty when it is missing or was cut, which the next write heals."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def write(path: str, text: str, mode: int = 0o644, uid: int = -1, gid: int = -1) -> None:
    """Whole or not at all, also over a power cut: a temporary file, on disk, renamed, the folder on disk.

    Never readable by more than it shall be: the temporary file is its maker's alone until it is written.
    """
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    temporary = f"{path}.{os.getpid()}{NEW}"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fchown(handle, uid, gid)
            os.fchmod(handle, mode)
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def create(path: str, text: str) -> bool:
    """Make a file that must not be there; False when it is. Of several who come at once one makes it, whole."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    temporary = f"{path}.{uuid.uuid4().hex}{NEW}"
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def as_json(values: dict) -> str:
    return json.dumps(values, indent=1, sort_keys=True) + "\n"


# --- the record -----------------------------------------------------------------------------------------------------------


class Record:
    """The files under /var/lib/sglang/<name>.

    state.json says how far the last run came: `phase` (absent, switched, committed, restored), `digest` of the unit wanted,
    `deployment` (id of what is committed) or `before` (id of what was, while `switched`), `at`. While `switched`: `boot` and
    `deadline` (seconds of that boot's clock after which the run is taken for dead), `url`, `start_timeout`, `proof_timeout`.
    deployments/<id>.json is a manifest: `id`, `digest`, `at`, `by`, `facts`, `unit`, `proof`.
    lock.json is the operator's lock.
    """

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        self.folder = os.path.join(root, name)
        self.deployments = os.path.join(self.folder, "deployments")
        self.state_file = os.path.join(self.folder, "state.json")
        self.lock_file = os.path.join(self.folder, "lock.json")

    def state(self) -> dict:
        return {"phase": "absent", **read_json(self.state_file)}

    def ids(self) -> list[str]:
        names = (
            os.path.basename(path)[:-5] for path in glob.glob(os.path.join(glob.escape(self.deployments), "*.json"))
        )
        return sorted((name for name in names if name.isdigit()), key=int)

    def entry(self, number: str) -> dict:
        """One manifest; empty when it is not there or cannot be read."""
        found = read_json(os.path.join(self.deployments, number + ".json"))
        return found if found.get("unit") else {}

    def entries(self) -> list[dict]:
        """All manifests that can be read, the newest first."""
        return [found for found in map(self.entry, reversed(self.ids())) if found]

    def last(self) -> dict:
        """What is committed: the deployment that the state names, else the newest that can be read."""
        state = self.state()
        named = self.entry(str(state.get("deployment") or state.get("before") or ""))
        return named or next(iter(self.entries()), {})

    def write_state(self, **values: object) -> None:
        write(self.state_file, as_json({**values, "at": now()}))

    def add(self, digest: str, unit: str, facts: dict, keep: int, **beside: object) -> dict:
        """Write a new manifest, and forget the oldest beyond `keep`."""
        number = f"{int(self.ids()[-1]) + 1 if self.ids() else 1:06d}"
        entry = {**beside, "id": number, "digest": digest, "at": now(), "facts": facts, "unit": unit}
        write(os.path.join(self.deployments, number + ".json"), as_json(entry))
        self.forget(self.ids()[:-keep])
        return entry

    def forget(self, numbers: Iterable[str]) -> None:
        for number in numbers:
            os.unlink(os.path.join(self.deployments, number + ".json"))

    # --- the lock

    def lock(self) -> dict:
        """Who holds the lock: `run` (names one run of one controller), `by` (user, host, pid, started, commit), `at`, `boot`,
        `seen` (seconds of that boot's clock at the holder's last step). Empty when nobody does."""
        return read_json(self.lock_file)

    def take(self, by: dict) -> bool:
        """Take the lock; False when somebody has it. One of two who come at once gets it."""
        held = {"run": run_of(by), "by": by, "at": now(), "boot": boot(mark=True), "seen": uptime()}
        return create(self.lock_file, as_json(held))

    def seen(self) -> None:
        """A sign of life of who holds the lock."""
        held = self.lock()
        if held:
            write(self.lock_file, as_json({**held, "boot": boot(mark=True), "seen": uptime()}))

    def free(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.lock_file)


def run_of(by: dict) -> str:
    """What tells one run from another: the controller's process and when it began."""
    return f"{by.get('user', '')}@{by.get('host', '')} pid {by.get('pid', 0)} since {by.get('started', '')}"


def forsaken(lock: dict, this_boot: str, uptime_now: float, limit: float) -> str:
    """Why a lock no longer counts; empty while it does. Decided from facts alone."""
    if not lock.get("run"):
        return "it cannot be read"
    if not this_boot or lock.get("boot") != this_boot:
        return "the node has booted since"
    silent = uptime_now - float(lock.get("seen") or 0)
    return f"its run gave no sign of life for {silent:.0f} s" if silent > limit else ""


def overdue(state: dict, this_boot: str, uptime_now: float) -> bool:
    """Whether a run that switched is to be taken for dead: its time is over, or the node has booted since, which ends it."""
    if state.get("phase") != "switched":
        return False
    return not this_boot or state.get("boot") != this_boot or uptime_now > float(state.get("deadline") or 0)


def whole(entry: dict) -> bool:
    """Whether a deployment can still run: its interpreter is there."""
    python = entry.get("facts", {}).get("python", "")
    return bool(entry) and (not python or os.path.exists(python))


# --- systemd --------------------------------------------------------------------------------------------------------------


def systemctl(*argv: str) -> tuple[int, str]:
    """Exit status and what was said."""
    done = subprocess.run(["systemctl", *argv], capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


def show(unit: str, names: Iterable[str]) -> dict[str, str]:
    _code, text = systemctl("show", "-p", ",".join(names), unit)
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def unit_path(name: str) -> str:
    return os.path.join(UNITS, name + ".service")


def stamp(unit: str) -> tuple[str, str]:
    """The unit's digest, and its text with the digest in place."""
    digest = hashlib.sha256(unit.encode()).hexdigest()[:12]
    return digest, unit.replace(PLACEHOLDER, digest)


def authentic(text: str) -> bool:
    """Whether a unit is as this project wrote it: its digest is that of its text."""
    found = re.search(r"SGLANG_DEPLOYMENT=([0-9a-f]{12})\b", text)
    return found is not None and stamp(text.replace(found[1], PLACEHOLDER))[0] == found[1]


def masked(path: str) -> bool:
    return os.path.islink(path) and os.path.realpath(path) == os.devnull


def running_digest(pid: int) -> Optional[str]:
    """The deployment that a process was started for; empty when it has none, None when it is gone or may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            pairs = stream.read().decode(errors="replace").split("\0")
    except OSError:
        return None
    return next((pair.partition("=")[2] for pair in pairs if pair.startswith("SGLANG_DEPLOYMENT=")), "")


def keep_unit(name: str) -> None:
    """Leave the unit a second name before another is written, so that it can come back where the disk has no room left."""
    path = unit_path(name)
    with contextlib.suppress(OSError):
        os.unlink(path + ".before")
    with contextlib.suppress(OSError):
        if not os.path.islink(path):
            os.link(path, path + ".before")


def write_unit(name: str, unit: str) -> None:
    path = unit_path(name)
    if read_text(path + ".before") == unit:
        os.replace(path + ".before", path)
    else:
        write(path, unit)


def end(name: str) -> None:
    """End all processes of a server, at once."""
    systemctl("kill", "--kill-who=all", "--signal=SIGKILL", name + ".service")


def put(name: str, unit: str, record: Record, url: str, kill: bool = False) -> None:
    """Write the unit and where the front finds it, and start it. With Type=exec systemd answers at exec.

    The restart waits for the old process to end, so that nobody takes it for the new one. `kill` ends it at once: one that was
    never proved, or hangs, would take the whole time of a drain. A start that fails is told by who waits.
    """
    write_unit(name, unit)
    upstream = os.path.join(record.folder, UPSTREAM)
    server = f"server {url.split('://', 1)[-1]};\n"
    moved = bool(url) and read_text(upstream) != server  # nothing is written that need not be: the disk may be full
    if moved:
        write(upstream, server)
    for words in (("daemon-reload",), ("enable", "--quiet", name + ".service")):
        code, said = systemctl(*words)
        if code:
            raise OSError(errno.EIO, f"systemctl {' '.join(words)} failed: {said}")
    # A unit that ran into its start limit must be let go first.
    systemctl("reset-failed", name + ".service")
    if kill:
        end(name)
    systemctl("restart", name + ".service")
    if moved and front_runs(name):
        reload_front(name)


# --- the front's gate -----------------------------------------------------------------------------------------------------


def front(name: str) -> str:
    return name + "-front.service"


def front_runs(name: str) -> bool:
    return systemctl("is-active", "--quiet", front(name))[0] == 0


def workers(name: str) -> set[int]:
    """Process ids of the front's workers."""
    main = int(show(front(name), ["MainPID"]).get("MainPID") or 0)
    found = set()
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="ascii", errors="replace") as stream:
                fields = stream.read().rsplit(")", 1)[-1].split()
        except OSError:
            continue  # ended meanwhile
        if main and int(fields[1]) == main:
            found.add(int(path.split("/")[2]))
    return found


def reload_front(name: str) -> None:
    code, said = systemctl("reload", front(name))
    if code:
        raise OSError(
            errno.EIO,
            f"systemctl reload {front(name)} failed: {said}. journalctl -u {front(name)} says why",
            front(name),
        )


def gate(record: Record) -> str:
    """The file that closes the gate. It outlives a reboot: nobody may meet a server that was not proved."""
    return os.path.join(record.folder, GATE)


def close_gate(record: Record) -> None:
    """Let the front refuse what comes from now on."""
    write(gate(record), "")


def gate_closed(record: Record) -> bool:
    return os.path.exists(gate(record))


def open_gate(record: Record) -> None:
    """Let the front pass requests on again."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(gate(record))


def drain(record: Record, timeout: float) -> tuple[float, int]:
    """Close the gate and wait until what is in flight has ended: seconds that took, and workers that still had requests at the end.

    nginx's own reload does it: old workers take nothing new and end when their last request has. Where it cannot reload, the gate
    opens again and nothing was touched.
    """
    began = time.monotonic()
    close_gate(record)
    busy = workers(record.name)
    try:
        reload_front(record.name)
    except OSError:
        open_gate(record)
        raise
    while busy and time.monotonic() - began < timeout:
        time.sleep(0.1)
        busy &= workers(record.name)
    return time.monotonic() - began, len(busy)
