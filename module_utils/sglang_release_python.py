# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""A release's own Python is asked as somebody else than root, and answers that cost seconds are remembered. Plain Python 3.9."""

from __future__ import annotations

import contextlib
import glob
import inspect
import json
import os
import pwd
from collections.abc import Iterable
from types import ModuleType
from typing import Any

KEPT = 4


def choose(found: Iterable[str], locked: Iterable[str]) -> str:
    """Version of the Python that a release is built with.

    The first of those found on the node that the stack is locked for. Its own python3 comes before newer ones, so that a Python
    which somebody adds changes no release. Where the node has none, or was not asked, the newest locked.
    """
    newest_last = sorted(locked, key=lambda version: [int(part) for part in version.split(".")])
    return next((version for version in found if version in newest_last), (newest_last or [""])[-1])


def account(*names: str) -> pwd.struct_passwd | None:
    """The first of these users that the node has."""
    for name in names:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


def identity(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """What subprocess.run needs to become this user; nothing where that is not to be had."""
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user and os.geteuid() == 0 else {}


def placed(program: ModuleType, folder: str, who: dict[str, Any]) -> str:
    """A program of module_utils as a file in a folder of its own, open to whom it is run as."""
    path = os.path.join(folder, program.__name__.rpartition(".")[2] + ".py")
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(inspect.getsource(program))
    if who:
        os.chmod(folder, 0o755)
        os.chmod(path, 0o644)
    return path


def cards() -> list[str]:
    """What the kernel says of the cards: others are another answer."""
    found = []
    for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")):
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
            found += [line for line in stream if line.startswith(("Model", "GPU UUID", "Bus Location"))]
    return found


def recalled(path: str | None, wanted: str) -> dict:
    """A kept answer; empty where there is none, or the file was cut."""
    try:
        with open(path or "", encoding="utf-8") as stream:
            found = json.load(stream).get(wanted)
    except (OSError, ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def keep(path: str, wanted: str, answer: dict) -> None:
    """Beside the last few others: a deployment may ask before patches are in, and after."""
    try:
        with open(path, encoding="utf-8") as stream:
            kept = json.load(stream)
    except (OSError, ValueError):
        kept = {}
    others = {name: value for name, value in kept.items() if name != wanted} if isinstance(kept, dict) else {}
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump({**dict(list(others.items())[1 - KEPT :]), wanted: answer}, stream)
    os.chmod(temporary, 0o600)
    os.replace(temporary, path)
