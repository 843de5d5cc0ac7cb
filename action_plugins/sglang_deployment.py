"""Say who deploys, and take over the lock of a run of this controller that is dead; the module of the same name does the rest."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import uuid
from pathlib import Path
from typing import Any, Dict, List, Optional

from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]


def said(*argv: str) -> str:
    """What a command prints; empty when it fails or is not there."""
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# What is kept with who did it; git takes longer to look for changes than the rest of this.
MARKED = ("begun", "committed")


def started(pid: int) -> str:
    """What tells a process from a later one of its number, whatever becomes of the clock; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[-1].split()[19]
    except (OSError, IndexError):
        return "" if Path("/proc/self/stat").exists() else " ".join(said("ps", "-o", "lstart=", "-p", str(pid)).split())


def machine() -> str:
    """What tells this controller from others of its name, a container's processes from its host's, and this boot from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return str(uuid.getnode())


def user() -> str:
    """Who is at the controller; a number where there is no name, as in a container."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def commit() -> str:
    """The project's commit, marked when files beside the inventory differ from it; a collection's version; or nothing."""
    manifest = ROOT / "MANIFEST.json"
    if manifest.is_file():
        told = json.loads(manifest.read_text(encoding="utf-8"))["collection_info"]
        return f"{told['namespace']}.{told['name']} {told['version']}"
    found = said("git", "rev-parse", "--short=12", "HEAD")
    return found + (
        "+changes" if found and said("git", "status", "--porcelain", "-uno", "--", ".", ":!inventory") else ""
    )


def operator(with_commit: bool) -> Dict[str, Any]:
    """Who runs this playbook, from where, and if asked for from which commit. A task's worker is a child of the run."""
    pid = os.getppid()
    return {
        "user": user(),
        "host": socket.gethostname(),
        "machine": machine(),
        "pid": pid,
        "started": started(pid),
        "commit": commit() if with_commit else "",
    }


def dead(held: Dict[str, Any]) -> bool:
    """Whether a lock's holder was a run of this controller and this user that is no more. Others' processes may be hidden."""
    by = held.get("by") or {}
    mine = by.get("machine") == machine() and by.get("user") == user() and bool(by.get("pid"))
    return mine and started(int(by["pid"])) != by.get("started")


def told(result: Dict[str, Any], drain_timeout: int) -> List[str]:
    """What an operator should not have to look for."""
    lines = [result["took_over"]] if result.get("took_over") else []
    if result.get("cut_off"):
        lines.append(
            f"requests that were still in flight after {drain_timeout} s (sglang_server_drain_timeout) were cut off"
        )
    lines += [f"what was changed by hand is kept in {path}" for path in result.get("aside") or []]
    lines += [f"removed {path}, which no deployment on record needs" for path in result.get("collected") or []]
    return lines


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        args = {**self._task.args, "by": operator(self._task.args.get("state") in MARKED)}
        result = self._module(args, task_vars)
        held = result.get("held") or {}
        if args.get("state") == "begun" and result.get("failed") and dead(held):
            result = self._module({**args, "break_lock": held["run"]}, task_vars)
        if args.get("state") == "switched":
            # Worked out once; the tasks that wait for this server, prove and commit it read it here.
            result.update(unit=args.get("unit"), facts=args.get("facts", {}))
        for line in told(result, int(args.get("drain_timeout") or 0)):
            self._display.display(f"{(task_vars or {}).get('inventory_hostname', '')}: {line}")
        return result

    def _module(self, args: Dict[str, Any], task_vars: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        return self._execute_module(module_name="sglang_deployment", module_args=args, task_vars=task_vars)
