"""Say who deploys, and take over the lock of a run of this controller that is dead; the module of the same name does the rest."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
from pathlib import Path
from typing import Any, Dict, Optional

from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]


def said(*argv: str) -> str:
    """What a command prints; empty when it fails or is not there."""
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def started(pid: int) -> str:
    """When a process began, as `ps` has it on Linux and macOS; empty when there is none."""
    return " ".join(said("ps", "-o", "lstart=", "-p", str(pid)).split())


def commit() -> str:
    """The project's commit, marked when files differ from it; empty outside a checkout."""
    found = said("git", "rev-parse", "--short=12", "HEAD")
    return found + ("+changes" if found and said("git", "status", "--porcelain", "-uno") else "")


def operator() -> Dict[str, Any]:
    """Who runs this playbook, from where, and from which commit. A task's worker is a child of the run."""
    pid = os.getppid()
    return {
        "user": os.environ.get("SUDO_USER") or getpass.getuser(),
        "host": socket.gethostname(),
        "pid": pid,
        "started": started(pid),
        "commit": commit(),
    }


def dead(held: Dict[str, Any]) -> bool:
    """Whether a lock's holder was a run of this controller that is no more."""
    by = held.get("by") or {}
    return (
        by.get("host") == socket.gethostname() and bool(by.get("pid")) and started(int(by["pid"])) != by.get("started")
    )


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        args = {**self._task.args, "by": operator()}
        result = self._module(args, task_vars)
        held = result.get("held") or {}
        if args.get("state") == "begun" and result.get("failed") and dead(held):
            result = self._module({**args, "break_lock": held["run"]}, task_vars)
        if result.get("took_over"):
            self._display.display(f"{(task_vars or {}).get('inventory_hostname', '')}: {result['took_over']}")
        return result

    def _module(self, args: Dict[str, Any], task_vars: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        return self._execute_module(module_name="sglang_deployment", module_args=args, task_vars=task_vars)
