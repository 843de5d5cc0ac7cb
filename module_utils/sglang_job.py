# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""A program on the node that takes longer than one round trip: started apart from the run, followed, taken up again, stopped.

The program writes JSON to its standard output, a document a line: `{"progress": "text"}` as often as it likes, and `{"result": …}`
at its end. It goes on when the run that began it is cut off; the next run that wants the same finds it and follows it.

`begin`, `look`, `wait` and `stop` are the node's side, `follow` is the controller's. Plain Python 3.9.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

# Of the program's output, to be read for its last words and its errors.
TAIL = 65536
# Seconds that a job gets between being asked to end and being ended.
GRACE = 10.0
# Seconds: one module run on the node, the least time between two, and between two lines that say that it still works.
SLICE = 10.0
PACE = 2.0
QUIET = 60.0


def ticks(pid: int) -> int:
    """When a process began, in clock ticks since boot; 0 where there is none, or it only waits to be collected."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def tail(path: str) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - TAIL))
        return stream.read().decode("utf-8", "replace")
    return ""


def begin(
    folder: str, wanted: str, argv: list[str], question: str, env: dict[str, str], cwd: str, identity: dict[str, Any]
) -> None:
    """Start a program that nobody waits for. What another job left in the folder goes.

    `wanted` says what it is for, so that another run knows whether it is its own. `identity` is what subprocess.Popen takes to
    become another user. OSError where the folder cannot be written. That the program cannot be run is in its errors, with
    status 127.
    """
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder, mode=0o700)
    with open(os.path.join(folder, "question"), "w", encoding="utf-8") as stream:
        stream.write(question)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.close(reader)
            _keeper(folder, wanted, argv, env, cwd, identity, writer)
        os._exit(1)
    os.close(writer)
    os.waitpid(child, 0)
    # Ends when the keeper has written who it is, so that it is never looked for in vain.
    with os.fdopen(reader, "rb") as stream:
        stream.read()


def _keeper(
    folder: str,
    wanted: str,
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    identity: dict[str, Any],
    told: int,
) -> None:
    """Runs in a session of its own, keeps the program's exit status, and holds nothing of the run that began it."""
    os.setsid()
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    about = {"wanted": wanted, "pid": os.getpid(), "ticks": ticks(os.getpid()), "began": time.monotonic()}
    _write(folder, "job.json", json.dumps(about))
    os.close(told)
    code = 127
    with (
        open(os.path.join(folder, "question"), "rb") as question,
        open(os.path.join(folder, "said"), "wb") as said,
        open(os.path.join(folder, "errors"), "wb") as errors,
    ):
        try:
            code = subprocess.run(
                argv, stdin=question, stdout=said, stderr=errors, env=env, cwd=cwd, check=False, **identity
            ).returncode
        except (OSError, subprocess.SubprocessError) as error:
            errors.write(f"{argv[0]} cannot be run: {getattr(error, 'strerror', '') or error}".encode())
    _write(folder, "rc", str(code))
    os._exit(0)


def _write(folder: str, name: str, text: str) -> None:
    path = os.path.join(folder, name)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(path + ".new", path)


def look(folder: str) -> dict[str, Any]:
    """The job in a folder; empty where there was none.

    `wanted`; `running`; `rc` (null while it runs, and where it was ended with its keeper: a reboot, a kill); `progress`, the last
    text; `result`, null until it is there; `errors`, the end of its error output; `seconds` since it began.
    """
    try:
        with open(os.path.join(folder, "job.json"), encoding="utf-8") as stream:
            about = json.load(stream)
        running = ticks(about["pid"]) == about["ticks"]
    except (OSError, ValueError, KeyError):
        return {}
    rc = tail(os.path.join(folder, "rc"))  # after `running`: one that ends in between has written it
    progress, result = "", None
    for line in tail(os.path.join(folder, "said")).splitlines():
        with contextlib.suppress(ValueError, AttributeError):
            said = json.loads(line)
            progress = said.get("progress", progress)
            result = said.get("result", result)
    return {
        "wanted": about["wanted"],
        "running": running and not rc,
        "rc": int(rc) if rc else None,
        "progress": progress,
        "result": result,
        "errors": tail(os.path.join(folder, "errors")),
        "seconds": time.monotonic() - about["began"],
    }


def wait(folder: str, seconds: float | None) -> dict[str, Any]:
    """The job when it has ended, or when the time is over; without one, its end is waited for."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    while True:
        job = look(folder)
        if not job.get("running") or time.monotonic() >= until:
            return job
        time.sleep(0.2)


def stop(folder: str) -> bool:
    """End a job with all that it started in its session. Whether there was one."""
    job = look(folder)
    if not job.get("running"):
        return False
    with open(os.path.join(folder, "job.json"), encoding="utf-8") as stream:
        session = json.load(stream)["pid"]
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + GRACE
        for pid in members(session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while members(session) and time.monotonic() < until:
            time.sleep(0.1)
    return True


def members(keeper: int) -> list[int]:
    """The processes of the keeper's session that are alive, the keeper last."""
    try:
        session = os.getsid(keeper)
    except ProcessLookupError:
        return []
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(name)) == session and ticks(int(name)):
                found.append(int(name))
    return sorted(found, key=lambda pid: pid == keeper)


def follow(
    execute: Callable[[dict[str, Any]], dict[str, Any]], say: Callable[[str], None], args: dict[str, Any]
) -> dict[str, Any]:
    """The controller's side: run a module until it no longer returns `unfinished`, and say its `progress` as it changes.

    The module takes `slice` (seconds to wait in one run) and `attached` (whether an earlier run of this task began it).
    """
    attached, shown, spoke = False, "", time.monotonic()
    parent = os.getppid()
    while True:
        # A task's worker outlives a run that is killed, and would take the result from the next one.
        if os.getppid() != parent:
            raise RuntimeError("The run that this task belongs to has ended.")
        asked = time.monotonic()
        step = execute({**args, "slice": SLICE, "attached": attached})
        progress = step.pop("progress", "")
        if not step.pop("unfinished", False):
            return step
        attached = True
        if progress != shown or time.monotonic() - spoke >= QUIET:
            say(progress if progress != shown else f"{progress} (still at it)")
            shown, spoke = progress, time.monotonic()
        time.sleep(max(0.0, PACE - (time.monotonic() - asked)))
